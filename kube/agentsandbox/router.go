package agentsandbox

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	kube "sigs.k8s.io/controller-runtime/pkg/client"

	forkd "github.com/forkd/forkd/client"
	"github.com/forkd/forkd/kube/api/v1alpha1"
)

// Bounds of the Router. The numbers of requests are those that it serves at the same time. Each can
// hold 2 MiB of output in memory.
const (
	maxRequests  = 192
	maxNamespace = 64 // of one namespace
	maxHeader    = 64 << 10
	maxDuration  = time.Hour // of a request
)

// defaultPort is the port of the runtime in agent-sandbox's pods, whose API the Router serves.
const defaultPort = "8888"

// Router serves the HTTP API of agent-sandbox's sandbox-router, and behind it the API of the runtime
// that agent-sandbox's clients expect in a sandbox. It carries requests to sandboxes by forkd's
// public API. All operators serve it, also those without the lease.
type Router struct {
	access  access
	connect func(ctx context.Context, s *v1alpha1.Sandbox) (*forkd.Client, error)
	bind    string
	tls     *tls.Config // nil: without TLS
	log     logr.Logger

	mu     sync.Mutex
	total  int
	active map[string]int // requests by namespace
}

// checkBind returns what is wrong with the address and the certificate of the Router.
func (cfg *Config) checkBind() error {
	host, _, err := net.SplitHostPort(cfg.Bind)
	ip := net.ParseIP(host)
	switch {
	case err != nil:
		return fmt.Errorf("agent-sandbox-bind: %w: want HOST:PORT", err)
	case (cfg.Cert == "") != (cfg.Key == ""):
		return errors.New("agent-sandbox-cert and agent-sandbox-key: want both or none")
	case cfg.Cert != "":
		if _, err := tls.LoadX509KeyPair(cfg.Cert, cfg.Key); err != nil {
			return fmt.Errorf("agent-sandbox-cert: %w", err)
		}
	case ip == nil || !ip.IsLoopback():
		return fmt.Errorf("agent-sandbox-bind %s: clients send tokens of Kubernetes: set agent-sandbox-cert and "+
			"agent-sandbox-key, or use a loopback address such as 127.0.0.1:8080", cfg.Bind)
	}
	return nil
}

func newRouter(mgr ctrl.Manager, cfg *Config) (*Router, error) {
	if err := cfg.checkBind(); err != nil {
		return nil, err
	}
	r := &Router{connect: cfg.Connect, bind: cfg.Bind, log: mgr.GetLogger().WithName("agent-sandbox"),
		active: map[string]int{}}
	if cfg.Cert != "" {
		// The files are read for each connection, because Kubernetes replaces them.
		r.tls = &tls.Config{MinVersion: tls.VersionTLS12,
			GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
				pair, err := tls.LoadX509KeyPair(cfg.Cert, cfg.Key)
				return &pair, err
			}}
	}
	// A client of its own: many requests of strangers must not slow down the controllers.
	own := rest.CopyConfig(mgr.GetConfig())
	own.QPS, own.Burst, own.RateLimiter, own.Timeout = 100, 200, nil, 10*time.Second
	c, err := kube.New(own, kube.Options{Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper()})
	if err != nil {
		return nil, err
	}
	r.access = access{Client: c, kept: map[grant]kept{}}
	return r, nil
}

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (r *Router) NeedLeaderElection() bool { return false }

// Start serves until ctx ends. It implements manager.Runnable.
func (r *Router) Start(ctx context.Context) error {
	l, err := net.Listen("tcp", r.bind)
	if err != nil {
		return fmt.Errorf("agent-sandbox-bind: %w", err)
	}
	if r.tls != nil {
		l = tls.NewListener(l, r.tls)
	}
	s := &http.Server{Handler: r, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute,
		MaxHeaderBytes: maxHeader}
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		<-ctx.Done()
		end, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if s.Shutdown(end) != nil {
			_ = s.Close()
		}
	}()
	if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	<-stopped
	return nil
}

// ServeHTTP implements http.Handler.
func (r *Router) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if req.URL.Path == "/healthz" {
		answer(w, http.StatusOK, map[string]string{"status": "ok"})
		return
	}
	namespace, name, text := named(req)
	if text != "" {
		refuse(w, http.StatusBadRequest, text)
		return
	}
	ctx, cancel := context.WithTimeout(req.Context(), maxDuration)
	defer cancel()
	deadlines := http.NewResponseController(w)
	_ = deadlines.SetReadDeadline(time.Now().Add(maxDuration)) // http.Server's own writer supports both
	_ = deadlines.SetWriteDeadline(time.Now().Add(maxDuration))
	user, status, text := r.access.allow(ctx, req, namespace, name)
	if status != 0 {
		if status == http.StatusUnauthorized {
			w.Header().Set("WWW-Authenticate", "Bearer")
		}
		refuse(w, status, text)
		return
	}
	if !r.enter(namespace) {
		w.Header().Set("Retry-After", "1")
		refuse(w, http.StatusServiceUnavailable, "too many requests at the same time: try again")
		return
	}
	defer r.leave(namespace)
	b, status, text := r.find(ctx, req, namespace, name)
	if status != 0 {
		refuse(w, status, text)
		return
	}
	// The daemons know only the operator. This line says who used the sandbox.
	route, _, _ := strings.Cut(strings.TrimPrefix(req.URL.Path, "/"), "/")
	r.log.Info("request", "user", user, "namespace", namespace, "sandbox", name, "id", b.id, "method", req.Method,
		"route", route[:min(len(route), 32)])
	b.serve(ctx, w, req)
}

// named returns the sandbox that the headers of a request name, or what is wrong with them.
func named(req *http.Request) (namespace, name, text string) {
	h := req.Header
	name, namespace = h.Get("X-Sandbox-ID"), h.Get("X-Sandbox-Namespace")
	if namespace == "" {
		namespace = "default"
	}
	switch port := h.Get("X-Sandbox-Port"); {
	case name == "":
		return "", "", "X-Sandbox-ID header is required."
	case len(validation.IsDNS1123Subdomain(name)) > 0:
		return "", "", "Invalid sandbox ID format."
	case len(validation.IsDNS1123Label(namespace)) > 0:
		return "", "", "Invalid namespace format."
	case h.Get("X-Sandbox-Pod-IP") != "":
		return "", "", "X-Sandbox-Pod-IP: a sandbox of forkd has no pod; remove the header"
	case port != "" && port != defaultPort:
		return "", "", "X-Sandbox-Port: only " + defaultPort + " is served; use forkd's API for other ports"
	}
	return namespace, name, ""
}

// enter counts a request, unless there are too many.
func (r *Router) enter(namespace string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.total >= maxRequests || r.active[namespace] >= maxNamespace {
		return false
	}
	r.total++
	r.active[namespace]++
	return true
}

func (r *Router) leave(namespace string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.total--
	if r.active[namespace]--; r.active[namespace] == 0 {
		delete(r.active, namespace)
	}
}

// find returns the sandbox of a Sandbox, or the HTTP status and the text of the answer. It asks the
// API server, not a cache, so a sandbox is found as soon as its status says that it is ready.
func (r *Router) find(ctx context.Context, req *http.Request, namespace, name string) (b *box, status int,
	text string) {
	s, err := load(ctx, r.access.Client, sandboxKind, kube.ObjectKey{Namespace: namespace, Name: name})
	if err != nil {
		return nil, http.StatusServiceUnavailable, "the Kubernetes API does not answer"
	}
	uid := req.Header.Get("X-Sandbox-UID")
	if s == nil || uid != "" && uid != string(s.GetUID()) {
		return nil, http.StatusNotFound, "there is no such Sandbox in the namespace"
	}
	var in v1alpha1.Sandbox
	exists, err := get(ctx, r.access.Client, namespace, name, &in)
	if err != nil {
		return nil, http.StatusServiceUnavailable, "the Kubernetes API does not answer"
	}
	ready := meta.FindStatusCondition(s.status.Conditions, conditionReady)
	isReady := ready != nil && ready.Status == metav1.ConditionTrue
	if !exists || !isInner(&in, s.GetUID()) || in.Status.ID == "" || !isReady {
		why := "it has no state yet"
		if ready != nil {
			why = ready.Reason + ": " + ready.Message
		}
		return nil, http.StatusServiceUnavailable, "the Sandbox is not ready: " + why
	}
	c, err := r.connect(ctx, &in)
	if err != nil {
		r.log.Error(err, "connect", "namespace", namespace, "sandbox", name)
		return nil, http.StatusBadGateway, fmt.Sprintf("Could not connect to the backend sandbox: %s", name)
	}
	base := in.Spec.Env[baseVariable]
	if !strings.HasPrefix(base, "/") {
		base = defaultBase
	}
	return &box{c, in.Status.ID, base}, 0, ""
}
