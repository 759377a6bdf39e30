package operator

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	authv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	kube "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/forkd/forkd/internal/apirig"
	"github.com/forkd/forkd/internal/guest/agent"
	"github.com/forkd/forkd/kube/api/v1alpha1"
)

// serverEnv is the path of the program of ../apiserver. scripts/kube builds it. Without the variable,
// the tests that need an API server are skipped.
const serverEnv = "FORKD_KUBE_APISERVER"

func TestMain(m *testing.M) {
	if text := os.Getenv(operatorEnv); text != "" {
		os.Exit(operatorMain(text))
	}
	ctrl.SetLogger(logr.Discard())
	apirig.Main(suite{m}, agent.Main)
}

// suite runs the tests, and ends the API server after them.
type suite struct{ *testing.M }

func (s suite) Run() int {
	defer func() {
		theServer.mu.Lock()
		defer theServer.mu.Unlock()
		theServer.stop()
		_ = os.RemoveAll(theServer.dir)
	}()
	return s.M.Run()
}

// server is a process with a real API server and its etcd. All tests share it.
type server struct {
	mu     sync.Mutex
	dir    string
	port   int
	cmd    *exec.Cmd
	ended  chan struct{} // closed when cmd has ended
	config *rest.Config  // of an administrator
	admin  kube.Client
}

var theServer server

// cluster returns the API server with the manifests of packaging/kubernetes.
func cluster(t *testing.T) *server {
	t.Helper()
	if os.Getenv(serverEnv) == "" {
		t.Skip(serverEnv + " is not set: run scripts/kube")
	}
	s := &theServer
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.admin != nil {
		return s
	}
	if err := s.open(); err != nil {
		t.Fatal(err)
	}
	s.start(t)
	defer func() {
		if t.Failed() {
			s.admin = nil // no other test can pass
		}
	}()
	for _, file := range []string{"cluster/crds.yaml", "forkd.yaml", "cluster/operator.yaml", "cluster/router.yaml",
		"agent-sandbox/crds.yaml", "agent-sandbox/operator.yaml"} {
		s.apply(t, filepath.Join("../../packaging/kubernetes", file))
	}
	return s
}

func (s *server) open() (err error) {
	if s.dir, err = os.MkdirTemp("", "forkd-kube"); err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	s.port = l.Addr().(*net.TCPAddr).Port
	return l.Close()
}

// start starts the process, and waits until it is ready.
func (s *server) start(t *testing.T) {
	t.Helper()
	log, err := os.OpenFile(filepath.Join(s.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	s.cmd = exec.Command(os.Getenv(serverEnv), "-dir", s.dir, "-port", strconv.Itoa(s.port))
	s.cmd.Stdout, s.cmd.Stderr = log, log
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended, cmd := make(chan struct{}), s.cmd
	s.ended = ended
	go func() { defer close(ended); _ = cmd.Wait() }()
	for {
		err := s.connect(t.Context())
		if err == nil {
			return
		}
		select {
		case <-ended:
			text, _ := os.ReadFile(log.Name())
			t.Fatalf("the API server has ended: %s", text[max(0, len(text)-4000):])
		case <-t.Context().Done():
			t.Fatal(err)
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// connect makes the client of an administrator, if the server is ready.
func (s *server) connect(ctx context.Context) error {
	token, err := os.ReadFile(filepath.Join(s.dir, "token"))
	if err != nil {
		return err
	}
	s.config = &rest.Config{Host: fmt.Sprintf("https://127.0.0.1:%d", s.port), BearerToken: string(token), QPS: -1,
		TLSClientConfig: rest.TLSClientConfig{CAFile: filepath.Join(s.dir, "apiserver.crt")}}
	ask, err := rest.UnversionedRESTClientFor(&rest.Config{Host: s.config.Host, BearerToken: s.config.BearerToken,
		TLSClientConfig: s.config.TLSClientConfig,
		ContentConfig:   rest.ContentConfig{NegotiatedSerializer: scheme.Codecs.WithoutConversion()}})
	if err != nil {
		return err
	}
	if err := ask.Get().AbsPath("/readyz").Do(ctx).Error(); err != nil {
		return err
	}
	known := runtime.NewScheme()
	if err := errors.Join(scheme.AddToScheme(known), v1alpha1.AddToScheme(known)); err != nil {
		return err
	}
	admin, err := kube.New(s.config, kube.Options{Scheme: known})
	if err != nil {
		return err
	}
	s.admin = kube.WithFieldValidation(admin, metav1.FieldValidationStrict)
	return nil
}

// stop kills the process by SIGKILL, if it runs.
func (s *server) stop() {
	if s.cmd != nil {
		_ = s.cmd.Process.Kill()
		<-s.ended
	}
}

// apply creates the objects of a manifest. The server refuses unknown fields.
func (s *server) apply(t *testing.T, path string) {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for objects := yaml.NewYAMLOrJSONDecoder(file, 4096); ; {
		var o unstructured.Unstructured
		if err := objects.Decode(&o); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			t.Fatal(err)
		}
		if len(o.Object) == 0 {
			continue
		}
		if err := s.admin.Create(t.Context(), &o); err != nil {
			t.Fatalf("%s: %s %s: %v", path, o.GetKind(), o.GetName(), err)
		}
	}
}

// account returns a configuration with the rights of the operator's service account.
func (s *server) account(t *testing.T) *rest.Config {
	t.Helper()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "forkd", Name: "forkd-operator"}}
	token := &authv1.TokenRequest{}
	if err := s.admin.SubResource("token").Create(t.Context(), account, token); err != nil {
		t.Fatal(err)
	}
	config := rest.CopyConfig(s.config)
	config.BearerToken = token.Status.Token
	return config
}
