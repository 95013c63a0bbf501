// gokubelet calls a DRA driver as kubelet does: with grpc-go, kubelet's dial options, and the clients of k8s.io/kubelet.
//
//	gokubelet SOCKET v1 info
//	gokubelet SOCKET v1|v1beta1 prepare|unprepare '{"claims": [{"namespace": ..., "name": ..., "uid": ...}]}'
//	gokubelet SOCKET v1|v1alpha1 health
//
// Each answer is a line of JSON.  `health` prints lines until it is ended or the driver ends the stream.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	healthv1 "k8s.io/kubelet/pkg/apis/dra-health/v1"
	"k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"
	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"
	"k8s.io/kubelet/pkg/apis/dra/v1beta1"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// kubelet waits 45 seconds for an answer.  A busy machine needs more, and a test must end.
const (
	callTimeout = 2 * time.Minute
	limit       = 10 * time.Minute
)

var local = grpc.WithTransportCredentials(insecure.NewCredentials())

func main() {
	if len(os.Args) < 4 {
		fail(errors.New("usage: gokubelet SOCKET VERSION info|prepare|unprepare|health [REQUEST]"))
	}
	socket, version, command := os.Args[1], os.Args[2], os.Args[3]
	time.AfterFunc(limit, func() { fail(fmt.Errorf("%s has not ended after %v", command, limit)) })
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	if command == "info" {
		client := registration.NewRegistrationClient(dial(ctx, socket))
		show(must(client.GetInfo(ctx, &registration.InfoRequest{})))
		return
	}
	// kubelet: pkg/kubelet/cm/dra/plugin/dra_plugin_manager.go
	conn := must(grpc.NewClient("unix:"+socket, local))
	switch command {
	case "prepare":
		show(must(plugin(conn, version).NodePrepareResources(ctx, read(&drav1.NodePrepareResourcesRequest{}))))
	case "unprepare":
		show(must(plugin(conn, version).NodeUnprepareResources(ctx, read(&drav1.NodeUnprepareResourcesRequest{}))))
	case "health":
		request := &healthv1.NodeWatchResourcesRequest{}
		stream := must(health(conn, version).NodeWatchResources(context.Background(), request))
		for {
			answer, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				return
			}
			show(must(answer, err))
		}
	default:
		fail(fmt.Errorf("no command %q", command))
	}
}

// dial is kubelet's (pkg/kubelet/pluginmanager/operationexecutor/operation_generator.go).  It is deprecated, and sends
// the escaped path as :authority, where NewClient sends localhost.
func dial(ctx context.Context, socket string) *grpc.ClientConn {
	dialer := func(ctx context.Context, path string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", path)
	}
	return must(grpc.DialContext(ctx, socket, local, grpc.WithBlock(), grpc.WithContextDialer(dialer)))
}

// plugin returns kubelet's client of that version (dra_plugin.go): a wrapper converts older messages.
func plugin(conn *grpc.ClientConn, version string) drav1.DRAPluginClient {
	switch version {
	case "v1":
		return drav1.NewDRAPluginClient(conn)
	case "v1beta1":
		return v1beta1.V1Beta1ClientWrapper{DRAPluginClient: v1beta1.NewDRAPluginClient(conn)}
	}
	panic(version)
}

func health(conn *grpc.ClientConn, version string) healthv1.DRAResourceHealthClient {
	switch version {
	case "v1":
		return healthv1.NewDRAResourceHealthClient(conn)
	case "v1alpha1":
		return healthv1.V1Alpha1ClientWrapper{Client: v1alpha1.NewDRAResourceHealthClient(conn)}
	}
	panic(version)
}

func read[Request proto.Message](request Request) Request {
	if err := protojson.Unmarshal([]byte(os.Args[len(os.Args)-1]), request); err != nil {
		fail(err)
	}
	return request
}

func show(answer proto.Message) {
	fmt.Printf("%s\n", must(protojson.Marshal(answer)))
}

func must[T any](value T, err error) T {
	if err != nil {
		fail(err)
	}
	return value
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "gokubelet:", err)
	os.Exit(1)
}
