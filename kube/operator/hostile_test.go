package operator

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	kube "sigs.k8s.io/controller-runtime/pkg/client"

	forkd "github.com/forkd/forkd/client"
	"github.com/forkd/forkd/kube/api/v1alpha1"
)

// fakes are faked daemons, by the names of their nodes.
type fakes struct {
	kube.Reader
	t    *testing.T
	urls map[string]string

	mu      sync.Mutex
	changes []string // requests that change something
}

// add adds a daemon. The answers are bodies by method and path. After "!" comes the code of an error.
func (f *fakes) add(node string, answers map[string]string) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet {
			f.mu.Lock()
			f.changes = append(f.changes, node+" "+r.Method+" "+r.URL.Path)
			f.mu.Unlock()
		}
		text, ok := answers[r.Method+" "+r.URL.Path]
		code, isError := strings.CutPrefix(text, "!")
		switch {
		case r.URL.Path == "/version":
			fmt.Fprintf(w, `{"node": %q}`, node)
		case isError:
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprintf(w, `{"code": %q, "error": "x"}`, code)
		case ok:
			fmt.Fprint(w, text)
		default:
			<-r.Context().Done() // the daemon hangs
		}
	}))
	f.t.Cleanup(server.Close)
	f.urls[node] = server.URL
}

func (f *fakes) List(_ context.Context, out kube.ObjectList, _ ...kube.ListOption) error {
	for node, text := range f.urls {
		at, err := url.Parse(text)
		if err != nil {
			return err
		}
		port, err := strconv.Atoi(at.Port())
		if err != nil {
			return err
		}
		list := out.(*corev1.PodList)
		list.Items = append(list.Items, corev1.Pod{Status: corev1.PodStatus{PodIP: at.Hostname()},
			Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{
				Ports: []corev1.ContainerPort{{Name: portName, ContainerPort: int32(port)}}}}}})
	}
	return nil
}

// Get knows all nodes except those whose names begin with "gone".
func (f *fakes) Get(_ context.Context, key kube.ObjectKey, _ kube.Object, _ ...kube.GetOption) error {
	if strings.HasPrefix(key.Name, "gone") {
		return apierrors.NewNotFound(schema.GroupResource{}, key.Name)
	}
	return nil
}

func newFakes(t *testing.T) (*fakes, *sandboxes) {
	f := &fakes{t: t, urls: map[string]string{}}
	return f, &sandboxes{cfg: &Config{}, fleet: &fleet{cached: f, direct: f, clients: map[string]*forkd.Client{}}}
}

func sandboxOn(node string) *v1alpha1.Sandbox {
	return &v1alpha1.Sandbox{ObjectMeta: metav1.ObjectMeta{UID: "u", Finalizers: []string{finalizer}},
		Spec:   v1alpha1.SandboxSpec{OperatingMode: v1alpha1.ModeSuspended},
		Status: v1alpha1.SandboxStatus{Node: node, ID: "sb-1"}}
}

// If a Sandbox is deleted, the operator waits while its sandbox moves, and deletes it on the node to which it
// has moved.
func TestDeletedWhileItMoves(t *testing.T) {
	answers := map[string]string{"GET /v1/sandboxes": `[]`, "GET /v1/sandboxes/sb-1": "!sandbox_moving"}
	f, r := newFakes(t)
	f.add("a", answers)
	f.add("b", map[string]string{"GET /v1/sandboxes": `[{"id": "sb-1"}]`, "DELETE /v1/sandboxes/sb-1": `{}`})
	if err := r.remove(t.Context(), sandboxOn("a")); err == nil {
		t.Error("the Sandbox does not wait for its sandbox, which is moving")
	}
	answers["GET /v1/sandboxes/sb-1"] = "!sandbox_moved"
	if err := r.remove(t.Context(), sandboxOn("a")); err != nil {
		t.Error(err)
	}
	if got := strings.Join(f.changes, ","); got != "b DELETE /v1/sandboxes/sb-1" {
		t.Errorf("the daemons got %q", got)
	}
}

// The operator changes no sandbox of another object, whatever the status says, and a daemon that hangs does not
// keep it for long.
func TestHostileStatusAndDaemon(t *testing.T) {
	f, r := newFakes(t)
	f.add("a", map[string]string{"GET /v1/sandboxes/sb-1": `{"id": "sb-1", "state": "running", "labels": {"kube-uid": "v"}}`})
	f.add("b", nil)
	for node, reason := range map[string]string{"a": reasonRefused, "b": reasonUnreachable} {
		c, err := r.fleet.connect(t.Context(), node)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 3*askTimeout)
		defer cancel()
		begin := time.Now()
		err = r.observe(ctx, c, sandboxOn(node))
		if wait := (*waitError)(nil); !errors.As(err, &wait) || wait.reason != reason {
			t.Errorf("node %s: %v", node, err)
		}
		if time.Since(begin) > 2*askTimeout {
			t.Errorf("node %s: it took %v", node, time.Since(begin))
		}
	}
	if len(f.changes) > 0 {
		t.Errorf("the daemons got %q", f.changes)
	}
}

// Only the daemon of a node can say that it made nothing. An error of a proxy before the daemon
// does not say this.
func TestAnswerOfAProxy(t *testing.T) {
	f, r := newFakes(t)
	f.add("a", map[string]string{"GET /v1/sandboxes": `[]`, "POST /v1/forks": "!"})
	f.add("b", map[string]string{"GET /v1/sandboxes": `[]`, "POST /v1/forks": "!host_disk"})
	for node, want := range map[string]string{"a": "a", "b": ""} {
		c, err := r.fleet.connect(t.Context(), node)
		if err != nil {
			t.Fatal(err)
		}
		s := sandboxOn(node)
		if s.Status.ID, err = r.create(t.Context(), c, s); err == nil || s.Status.Node != want {
			t.Errorf("node %s: %+v, %v", node, s.Status, err)
		}
	}
}

// noServer is a client whose changes of statuses succeed.
type noServer struct{ kube.Client }

func (noServer) Status() kube.SubResourceWriter { return noStatus{} }

type noStatus struct{ kube.SubResourceWriter }

func (noStatus) Update(context.Context, kube.Object, ...kube.SubResourceUpdateOption) error {
	return nil
}

// The status of a Snapshot forgets nodes that have left the cluster, and keeps nodes whose daemon is away.
func TestNodesThatHaveLeft(t *testing.T) {
	_, sandboxes := newFakes(t)
	r := &snapshots{Client: noServer{}, fleet: sandboxes.fleet, cfg: &Config{}, pulls: newPulls(func(types.UID) {})}
	s := &v1alpha1.Snapshot{Status: v1alpha1.SnapshotStatus{Digest: "sha256:x", Nodes: []v1alpha1.SnapshotNode{
		{Name: "away", State: v1alpha1.NodeReady}, {Name: "gone-1", State: v1alpha1.NodeReady}}}}
	if err := r.spread(t.Context(), s, s.Status.DeepCopy()); err != nil {
		t.Fatal(err)
	}
	if n := s.Status.Nodes; len(n) != 1 || n[0].Name != "away" {
		t.Errorf("%+v", n)
	}
}
