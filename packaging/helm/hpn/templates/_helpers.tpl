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
terminationMessagePolicy: FallbackToLogsOnError
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

{{- define "hpn.labels" -}}
{app.kubernetes.io/name: hpn{{ with .Values.name }}, hpn-cni.io/pool: {{ . | quote }}{{ end }}}
{{- end -}}

{{- /* Of every pod of the chart: how it gets its image, and where it may run. */}}
{{- define "hpn.pod" -}}
{{- $pod := dict "nodeSelector" (merge (dict "kubernetes.io/os" "linux") .Values.nodeSelector) -}}
{{- range $key := list "imagePullSecrets" "tolerations" "affinity" -}}
{{- with get $.Values $key }}{{ $_ := set $pod $key . }}{{ end -}}
{{- end -}}
{{ toJson $pod }}
{{- end -}}

{{- /* The affinity of a DaemonSet's pods.  Its terms also keep it off the nodes of the pools before it, and the one without a
pool off those of all pools: on every node at most one has a pod, even if two pools select the node.  Any term suffices, and
each denies one label of each of these pools. */}}
{{- define "hpn.affinity" -}}
{{- $affinity := deepCopy .Values.affinity -}}
{{- $required := dig "nodeAffinity" "requiredDuringSchedulingIgnoredDuringExecution" "nodeSelectorTerms" list $affinity -}}
{{- $terms := $required | default (list dict) -}}
{{- $isBefore := true -}}
{{- range $pool := .Values.pools -}}
{{- $isBefore = and $isBefore (ne $pool.name ($.Values.name | default "")) -}}
{{- if $isBefore -}}
{{- $before := $terms -}}
{{- $terms = list -}}
{{- range $term := $before -}}
{{- range $key, $value := $pool.nodeSelector -}}
{{- $denied := dict "key" $key "operator" "NotIn" "values" (list $value) -}}
{{- $expressions := append ($term.matchExpressions | default list) $denied -}}
{{- $terms = append $terms (merge (dict "matchExpressions" $expressions) $term) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if first $terms -}}
{{- $selector := dict "nodeSelectorTerms" $terms -}}
{{- $all := dict "nodeAffinity" (dict "requiredDuringSchedulingIgnoredDuringExecution" $selector) -}}
{{- $affinity = mergeOverwrite $affinity $all -}}
{{- end -}}
{{ toJson $affinity }}
{{- end -}}

{{- /* Whether a node with these labels is selected. */}}
{{- define "hpn.selects" -}}
{{- $labels := .labels -}}
{{- $selects := true -}}
{{- range $key, $value := .nodeSelector -}}
{{- $selects = and $selects (eq (get $labels $key) $value) -}}
{{- end -}}
{{- if $selects }}true{{ end -}}
{{- end -}}

{{- /* Directories of the node that hpn node writes to for pfs, and for rdmaNamespaces. */}}
{{- define "hpn.provision" -}}
{{- $paths := dict -}}
{{- if .Values.provision -}}
{{- $_ := set $paths "sys" "/sys" -}}
{{- if hasKey (include "hpn.devices" . | fromYaml) "rdmaNamespaces" -}}
{{- $_ := set $paths "modprobe" "/etc/modprobe.d" -}}
{{- end -}}
{{- end -}}
{{ toJson $paths }}
{{- end -}}

{{- /* Whether the cluster has no Multus.  `helm template` asks no cluster; its list of APIs lacks apiregistration.k8s.io,
which every API server has. */}}
{{- define "hpn.lacksMultus" -}}
{{- with .Capabilities.APIVersions -}}
{{- if and (.Has "apiregistration.k8s.io/v1") (not (.Has "k8s.cni.cncf.io/v1/NetworkAttachmentDefinition")) }}true{{ end -}}
{{- end -}}
{{- end -}}

{{- /* Whether an ipam has a range that is the same on each node: of no parent, of no node, and with no derived address. */}}
{{- define "hpn.sameOnEachNode" -}}
{{- range append (.ranges | default list) (list (pick . "subnet" "eui64" "embedIPv4" "node")) -}}
{{- range . -}}
{{- if and .subnet (not (hasPrefix "parent-" (toString .subnet))) (not .eui64) (not .embedIPv4) (not .node) }}true{{ end -}}
{{- end -}}
{{- end -}}
{{- if .rails }}true{{ end -}}
{{- end -}}
