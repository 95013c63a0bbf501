{{- define "hpn.image" -}}
{{- with .Values.image -}}
{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end -}}
{{- end -}}

{{- define "hpn.container" -}}
image: {{ include "hpn.image" . | quote }}
{{- with .Values.image.pullPolicy }}
imagePullPolicy: {{ . }}
{{- end }}
resources: {{ toJson .Values.resources }}
{{- end -}}

{{- define "hpn.env" -}}
{{- range $name, $value := .Values.env }}
- {name: {{ $name }}, value: {{ $value | quote }}}
{{- end -}}
{{- end -}}

{{- define "hpn.devices" -}}
{{ .Values.devices | default (.Files.Get "kubernetes/devices.yaml") }}
{{- end -}}

{{- /* The ConfigMap's name contains a digest of the file, as kustomize's does: another file is a rollout, and a pod that
restarts before its turn, or after a refused file has stopped the rollout, still reads the earlier file. */}}
{{- define "hpn.configuration" -}}
hpn-node-{{ include "hpn.devices" . | sha256sum | trunc 10 }}
{{- end -}}
