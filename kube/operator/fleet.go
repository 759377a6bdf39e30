package operator

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	kube "sigs.k8s.io/controller-runtime/pkg/client"

	forkd "github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/cluster/placement"
)

// Bounds on what the operator asks daemons.
const (
	askTimeout = 5 * time.Second // for short questions
	maxAsked   = 32              // daemons that are asked at the same time
	maxAtNode  = 4               // Sandboxes of one node that are reconciled at the same time
	maxToken   = 4 << 10         // bytes of the file with the token
)

// Names by which the operator finds the daemons' pods and ports.
const (
	appLabel = "app.kubernetes.io/name"
	appName  = "forkd"
	portName = "http"
)

// errGone says that Kubernetes has no such node any more.
var errGone = errors.New("the node has left the cluster")

// errBusy says that the operator already works on as many Sandboxes of the node as it may.
var errBusy = errors.New("other Sandboxes of the node come first")

// unreachableError says that a node exists, but its daemon cannot be used now.
type unreachableError struct {
	node string
	err  error
}

func (e *unreachableError) Error() string { return fmt.Sprintf("node %s: %v", e.node, e.err) }
func (e *unreachableError) Unwrap() error { return e.err }

// daemon is the daemon of a node, as Kubernetes describes it.
type daemon struct {
	node     string
	url      string
	cordoned bool // the node gets no new sandboxes and snapshots
	labels   map[string]string
}

// matches reports whether the daemon's node has all labels of a selector.
func (d *daemon) matches(selector map[string]string) bool {
	for name, value := range selector {
		if got, ok := d.labels[name]; !ok || got != value {
			return false
		}
	}
	return true
}

// report is what a daemon says about itself.
type report struct {
	node  placement.Node
	sizes map[string]uint64 // MiB of each snapshot
	since uint64            // sandboxes that were placed on the node since the report
}

// fleet knows the daemons of the cluster. Kubernetes says which daemons there are, and the daemons
// say what they have.
type fleet struct {
	cached    kube.Reader // pods and nodes, from the cache
	direct    kube.Reader // the API server
	namespace string
	tokenFile string
	interval  time.Duration

	mu      sync.Mutex
	clients map[string]*forkd.Client // by URL and token
	reports map[string]*report       // by node; a daemon that did not answer the last question has none
	working map[string]int           // number of Sandboxes that are being reconciled, by node
}

// enter is called before a Sandbox of a node is reconciled. It returns a function to call afterwards,
// or errBusy. So a slow node leaves workers for the Sandboxes of other nodes.
func (f *fleet) enter(node string) (leave func(), err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.working[node] >= maxAtNode {
		return nil, errBusy
	}
	if f.working == nil {
		f.working = make(map[string]int)
	}
	f.working[node]++
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.working[node]--; f.working[node] == 0 {
			delete(f.working, node)
		}
	}, nil
}

// daemons returns the daemons, sorted by node. The cache of Kubernetes may be seconds old.
func (f *fleet) daemons(ctx context.Context) ([]daemon, error) {
	var pods corev1.PodList
	err := f.cached.List(ctx, &pods, kube.InNamespace(f.namespace), kube.MatchingLabels{appLabel: appName})
	if err != nil {
		return nil, err
	}
	// If a node has several pods, only one counts: a pod that is not being deleted comes first,
	// then the youngest.
	slices.SortFunc(pods.Items, func(a, b corev1.Pod) int {
		if ends := b.DeletionTimestamp.IsZero(); ends != a.DeletionTimestamp.IsZero() {
			if ends {
				return 1
			}
			return -1
		}
		return b.CreationTimestamp.Compare(a.CreationTimestamp.Time)
	})
	var list []daemon
	for _, pod := range pods.Items {
		port := portOf(&pod)
		isSame := func(d daemon) bool { return d.node == pod.Spec.NodeName }
		if pod.Spec.NodeName == "" || pod.Status.PodIP == "" || port == 0 || hasEnded(&pod) ||
			slices.ContainsFunc(list, isSame) {
			continue
		}
		var node corev1.Node
		err := f.cached.Get(ctx, types.NamespacedName{Name: pod.Spec.NodeName}, &node)
		if kube.IgnoreNotFound(err) != nil {
			return nil, err
		}
		list = append(list, daemon{node: pod.Spec.NodeName,
			url:      "http://" + net.JoinHostPort(pod.Status.PodIP, strconv.Itoa(int(port))),
			cordoned: err != nil || node.Spec.Unschedulable || !pod.DeletionTimestamp.IsZero(), labels: node.Labels})
	}
	slices.SortFunc(list, func(a, b daemon) int { return strings.Compare(a.node, b.node) })
	return list, nil
}

func hasEnded(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded
}

// portOf returns the port of the daemon in a pod, or 0.
func portOf(pod *corev1.Pod) int32 {
	for _, c := range pod.Spec.Containers {
		for _, p := range c.Ports {
			if p.Name == portName {
				return p.ContainerPort
			}
		}
	}
	return 0
}

// connect returns a client of the daemon of a node, after the daemon has confirmed that it is the
// daemon of this node. Without that, an address that now belongs to another pod could make the
// operator believe that a sandbox does not exist. The error is errGone, an *unreachableError, or an
// error of the API server.
func (f *fleet) connect(ctx context.Context, node string) (*forkd.Client, error) {
	list, err := f.daemons(ctx)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(list, func(d daemon) bool { return d.node == node })
	if i < 0 {
		exists, err := f.hasNode(ctx, node)
		switch {
		case err != nil:
			return nil, err
		case !exists:
			return nil, errGone
		}
		return nil, &unreachableError{node, errors.New("it has no pod with a daemon")}
	}
	c, err := f.client(list[i].url)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	v, err := c.Version(ctx)
	if err == nil && v.Node != node {
		err = fmt.Errorf("its daemon has --node %q: want %q", v.Node, node)
	}
	if err != nil {
		return nil, &unreachableError{node, err}
	}
	return c, nil
}

// hasNode asks the API server whether a node exists.
func (f *fleet) hasNode(ctx context.Context, node string) (bool, error) {
	err := f.direct.Get(ctx, types.NamespacedName{Name: node}, &corev1.Node{})
	return !apierrors.IsNotFound(err), kube.IgnoreNotFound(err)
}

// client returns the client for an address, with the token that is in the file now.
func (f *fleet) client(url string) (*forkd.Client, error) {
	token := ""
	if f.tokenFile != "" {
		text, err := os.ReadFile(f.tokenFile)
		if err != nil {
			return nil, fmt.Errorf("token of the operator: %w", err)
		}
		if len(text) > maxToken {
			return nil, fmt.Errorf("token of the operator: %s has more than %d bytes", f.tokenFile, maxToken)
		}
		token = strings.TrimSpace(string(text))
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	key := url + "\n" + token
	if c, ok := f.clients[key]; ok {
		return c, nil
	}
	c, err := forkd.New(url, token)
	if err == nil {
		f.clients[key] = c
	}
	return c, err
}

// Start asks all daemons about themselves until ctx ends. It implements manager.Runnable.
func (f *fleet) Start(ctx context.Context) error {
	for {
		f.ask(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(f.interval):
		}
	}
}

func (f *fleet) ask(ctx context.Context) {
	list, err := f.daemons(ctx)
	if err != nil {
		return // the cache is stopping
	}
	var asked errgroup.Group
	asked.SetLimit(maxAsked)
	for _, d := range list {
		asked.Go(func() error {
			r, err := f.askOne(ctx, &d)
			f.mu.Lock()
			defer f.mu.Unlock()
			if delete(f.reports, d.node); err == nil {
				f.reports[d.node] = r
			}
			return nil
		})
	}
	_ = asked.Wait() // the functions return no error
	f.mu.Lock()
	defer f.mu.Unlock()
	for key, c := range f.clients {
		url, _, _ := strings.Cut(key, "\n")
		if !slices.ContainsFunc(list, func(d daemon) bool { return d.url == url }) {
			c.Close()
			delete(f.clients, key)
		}
	}
	for node := range f.reports {
		if !slices.ContainsFunc(list, func(d daemon) bool { return d.node == node }) {
			delete(f.reports, node)
		}
	}
}

func (f *fleet) askOne(ctx context.Context, d *daemon) (*report, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	c, err := f.client(d.url)
	if err != nil {
		return nil, err
	}
	v, err := c.Version(ctx)
	if err != nil {
		return nil, err
	}
	if v.Node != d.node {
		return nil, fmt.Errorf("the daemon of node %q has --node %q", d.node, v.Node)
	}
	host, err := c.HostMetrics(ctx, forkd.MetricsRequest{Since: time.Now().Add(-10 * time.Second)})
	if err != nil {
		return nil, err
	}
	snapshots, err := c.Snapshots(ctx)
	if err != nil {
		return nil, err
	}
	r := &report{}
	r.node, r.sizes = placement.Observed(d.node, d.cordoned, &v, &host, snapshots)
	return r, nil
}

// lacks reports whether a daemon has said that it does not have a snapshot. It returns false if the
// daemon does not answer.
func (f *fleet) lacks(node, tag string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	r, ok := f.reports[node]
	return ok && r.node.Has[tag] == placement.Absent
}

// choose returns the best node for a new sandbox, among the nodes that the callback accepts.
func (f *fleet) choose(ctx context.Context, tag, key string, among func(*daemon) bool) (string, error) {
	list, err := f.daemons(ctx)
	if err != nil {
		return "", err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	var nodes []*placement.Node
	request := placement.Request{Snapshot: tag, N: 1, Each: placement.Resources{MemoryMiB: placement.AssumedMiB}, Key: key}
	for _, d := range list {
		r := f.reports[d.node]
		if r == nil || d.cordoned || !among(&d) {
			continue
		}
		n := r.node
		n.Used.Sandboxes += r.since
		n.Used.MemoryMiB += r.since * placement.AssumedMiB
		nodes = append(nodes, &n)
		request.SnapshotMiB = max(request.SnapshotMiB, r.sizes[tag])
	}
	i, err := placement.Choose(nodes, request)
	if err != nil {
		return "", err
	}
	f.reports[nodes[i].Name].since++
	return nodes[i].Name, nil
}
