package operator

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	ociregistry "github.com/google/go-containerregistry/pkg/registry"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	kube "sigs.k8s.io/controller-runtime/pkg/client"

	forkd "github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/apirig"
	"github.com/forkd/forkd/internal/sigstore"
	"github.com/forkd/forkd/kube/api/v1alpha1"
)

// patience is how long a test waits for something that must happen.
const patience = 3 * time.Minute

// operatorEnv names the environment variable with the configuration of an operator. If it is set,
// the test binary runs as that operator.
const operatorEnv = "FORKD_TEST_OPERATOR"

// process is the configuration of an operator in a process of its own.
type process struct {
	Host, Token, CA string
	Config          Config
}

func operatorMain(text string) int {
	var p process
	err := json.Unmarshal([]byte(text), &p)
	if err == nil {
		ctrl.SetLogger(logr.FromSlogHandler(slog.NewTextHandler(os.Stderr, nil)))
		mgr, failed := New(&rest.Config{Host: p.Host, BearerToken: p.Token, QPS: -1,
			TLSClientConfig: rest.TLSClientConfig{CAFile: p.CA}}, p.Config)
		if err = failed; err == nil {
			err = mgr.Start(ctrl.SetupSignalHandler())
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// host is a node of the cluster with a daemon, whose VMs are faked. The operator reaches the daemon
// through a proxy.
type host struct {
	*apirig.Rig
	name  string
	proxy *httptest.Server

	mu       sync.Mutex
	down     bool                // the proxy closes all connections
	sending  func(*http.Request) // called before a request for sandboxes is passed on; may be nil
	holds    string              // requests whose path ends so are not answered; empty: none
	answered func()              // called when the daemon has answered a request for sandboxes; may be nil
}

func (h *host) set(change func(h *host)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	change(h)
}

// forks is the path of requests for sandboxes.
const forks = "/v1/forks"

func (h *host) serve(w http.ResponseWriter, r *http.Request, pass http.Handler) {
	h.mu.Lock()
	down, sending, holds := h.down, h.sending, h.holds
	h.mu.Unlock()
	if holds != "" && strings.HasSuffix(r.URL.Path, holds) {
		<-r.Context().Done()
		return
	}
	if sending != nil && r.URL.Path == forks {
		sending(r)
		down = true
	}
	if down {
		panic(http.ErrAbortHandler) // closes the connection
	}
	pass.ServeHTTP(w, r)
}

// world is a cluster with its nodes, an operator and a namespace for the objects of one test.
type world struct {
	*server
	t         *testing.T
	namespace string
	keys      string // directory of the keys that all daemons trust
	token     string // file with the token of the daemons
	hosts     map[string]*host

	mu       sync.Mutex
	operator *exec.Cmd
	elect    bool
	change   func(*Config) // changes the configuration of the operator; may be nil
}

// newWorld starts a daemon for each name, but no operator. The names of the nodes have a prefix.
func newWorld(t *testing.T, prefix string, names ...string) *world {
	t.Helper()
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	w := &world{server: cluster(t), t: t, namespace: prefix, keys: t.TempDir(),
		token: filepath.Join(t.TempDir(), "token"), hosts: map[string]*host{}}
	w.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.namespace}})
	if err := os.WriteFile(w.token, []byte(apirig.Token+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		w.addHost(prefix + "-" + name)
	}
	t.Cleanup(w.kill)
	return w
}

func (w *world) create(o kube.Object) {
	w.t.Helper()
	if err := w.admin.Create(w.t.Context(), o); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) addHost(name string) {
	w.t.Helper()
	rig := apirig.Start(w.t, apirig.Options{Agent: apirig.SelfAgent, Node: name, TrustedKeys: w.keys})
	h := &host{Rig: rig, name: name}
	to, err := url.Parse(h.URL)
	if err != nil {
		w.t.Fatal(err)
	}
	pass := httputil.NewSingleHostReverseProxy(to)
	pass.FlushInterval = -1
	pass.ErrorLog = log.New(io.Discard, "", 0)
	pass.ModifyResponse = func(r *http.Response) error {
		h.mu.Lock()
		answered := h.answered
		h.mu.Unlock()
		if answered != nil && r.Request.URL.Path == forks {
			answered()
		}
		return nil
	}
	h.proxy = httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		h.serve(out, r, pass)
	}))
	h.proxy.Config.ErrorLog = log.New(io.Discard, "", 0)
	w.t.Cleanup(h.proxy.Close)
	w.hosts[name] = h
	w.create(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"test": w.namespace}}})
	w.addPod(h)
	w.t.Cleanup(func() {
		w.removePod(h)
		_ = w.admin.Delete(context.Background(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
	})
}

// addPod adds the pod of a daemon, as the DaemonSet's controller, the scheduler and kubelet would.
func (w *world) addPod(h *host) {
	w.t.Helper()
	address, err := url.Parse(h.proxy.URL)
	if err != nil {
		w.t.Fatal(err)
	}
	port, err := strconv.Atoi(address.Port())
	if err != nil {
		w.t.Fatal(err)
	}
	labels := map[string]string{appLabel: appName}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "forkd", Name: h.name, Labels: labels},
		Spec: corev1.PodSpec{NodeName: h.name, Containers: []corev1.Container{{Name: "forkd", Image: "forkd",
			Ports: []corev1.ContainerPort{{Name: portName, ContainerPort: int32(port)}}}}}}
	w.create(pod)
	pod.Status.Phase, pod.Status.PodIP = corev1.PodRunning, address.Hostname()
	pod.Status.PodIPs = []corev1.PodIP{{IP: address.Hostname()}}
	if err := w.admin.Status().Update(w.t.Context(), pod); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) removePod(h *host) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "forkd", Name: h.name}}
	_ = w.admin.Delete(context.Background(), pod, kube.GracePeriodSeconds(0))
}

// start starts an operator in a process of its own.
func (w *world) start() {
	w.t.Helper()
	account := w.account(w.t)
	cfg := Config{Namespace: "forkd", TokenFile: w.token, Interval: 300 * time.Millisecond, ConfigMap: "forkd-nodes",
		RouterTokenFile: w.token, RouterURL: "http://router.example:8889", Elect: w.elect}
	if w.change != nil {
		w.change(&cfg)
	}
	text, err := json.Marshal(process{account.Host, account.BearerToken, account.CAFile, cfg})
	if err != nil {
		w.t.Fatal(err)
	}
	path := filepath.Join(w.t.ArtifactDir(), "operator.log")
	output, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		w.t.Fatal(err)
	}
	defer output.Close()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), operatorEnv+"="+string(text))
	cmd.Stdout, cmd.Stderr = output, output
	if err := cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.operator = cmd
}

// kill kills the operator by SIGKILL, if it runs.
func (w *world) kill() {
	w.mu.Lock()
	cmd := w.operator
	w.operator = nil
	w.mu.Unlock()
	if cmd != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
}

// publish pushes a snapshot to a registry and signs it. It returns the reference with a tag, and the
// digest.
func (w *world) publish() (reference, digest string) {
	w.t.Helper()
	registry := httptest.NewServer(ociregistry.New(ociregistry.Logger(log.New(io.Discard, "", 0))))
	w.t.Cleanup(registry.Close)
	source := apirig.Start(w.t, apirig.Options{Agent: apirig.SelfAgent})
	ctx := w.t.Context()
	if _, err := source.Bake(ctx, source.Parent); err != nil {
		w.t.Fatal(err)
	}
	reference = strings.TrimPrefix(registry.URL, "http://") + "/team/py:1"
	sent, err := source.PushSnapshot(ctx, source.Parent.Tag, forkd.PushRequest{Reference: reference}, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	key, err := sigstore.NewPrivateKey()
	if err != nil {
		w.t.Fatal(err)
	}
	bundle, err := sigstore.Sign(key, sent.Digest)
	if err != nil {
		w.t.Fatal(err)
	}
	if _, err := source.SignSnapshot(ctx, forkd.SignRequest{Reference: sent.Reference,
		Bundle: string(bundle)}); err != nil {
		w.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(w.keys, "ann.pub"), key.Public().PEM(), 0o600); err != nil {
		w.t.Fatal(err)
	}
	return reference, sent.Digest
}

// until calls f, which returns what is still missing, until the returned text is empty.
func (w *world) until(what string, f func() string) {
	w.t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
		missing := f()
		if missing == "" {
			return
		}
		if time.Now().After(end) {
			w.t.Fatalf("%s: %s", what, missing)
		}
	}
}

// get reads an object of the test's namespace. It reports whether the object exists.
func (w *world) get(name string, o kube.Object) bool {
	w.t.Helper()
	err := w.admin.Get(w.t.Context(), kube.ObjectKey{Namespace: w.namespace, Name: name}, o)
	if kube.IgnoreNotFound(err) != nil {
		w.t.Logf("get %s: %v", name, err) // the API server may be away
		return true
	}
	return err == nil
}

// isReady returns an empty text if the condition Ready has the wanted status and reason.
func isReady(list []metav1.Condition, status metav1.ConditionStatus, reason string) string {
	c := meta.FindStatusCondition(list, v1alpha1.Ready)
	if c == nil || c.Status != status || c.Reason != reason {
		return fmt.Sprintf("the condition is %+v: want %s, %s", c, status, reason)
	}
	return ""
}

// snapshot makes the Snapshot py on all nodes of the test, and waits until it is ready.
func (w *world) snapshot() *v1alpha1.Snapshot {
	w.t.Helper()
	reference, _ := w.publish()
	s := &v1alpha1.Snapshot{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "py"},
		Spec: v1alpha1.SnapshotSpec{Reference: reference, NodeSelector: map[string]string{"test": w.namespace}}}
	w.create(s)
	w.until("snapshot", func() string {
		w.get("py", s)
		return isReady(s.Status.Conditions, metav1.ConditionTrue, reasonReady)
	})
	return s
}

// sandbox creates a Sandbox of the Snapshot py.
func (w *world) sandbox(name string, change ...func(*v1alpha1.Sandbox)) {
	w.t.Helper()
	s := &v1alpha1.Sandbox{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name},
		Spec: v1alpha1.SandboxSpec{SandboxTemplate: v1alpha1.SandboxTemplate{Snapshot: "py"}}}
	for _, f := range change {
		f(s)
	}
	w.create(s)
}

// reaches waits until a Sandbox has a phase, and returns the Sandbox.
func (w *world) reaches(name string, phase v1alpha1.Phase) *v1alpha1.Sandbox {
	w.t.Helper()
	s := &v1alpha1.Sandbox{}
	w.until(name, func() string {
		if !w.get(name, s) {
			return "it does not exist"
		}
		if s.Status.Phase != phase {
			return fmt.Sprintf("%+v: want the phase %s", s.Status, phase)
		}
		return ""
	})
	return s
}

// made returns the sandboxes that all daemons have for Sandboxes of the test, by id.
func (w *world) made() map[string]forkd.Sandbox {
	w.t.Helper()
	all := map[string]forkd.Sandbox{}
	for _, h := range w.hosts {
		list, err := h.Sandboxes(w.t.Context())
		if err != nil {
			w.t.Fatal(err)
		}
		for _, s := range list {
			if s.Labels[uidLabel] != "" {
				all[s.ID] = s
			}
		}
	}
	return all
}
