package operator

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	kube "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	forkd "github.com/forkd/forkd/client"
	"github.com/forkd/forkd/kube/api/v1alpha1"
)

// finalizer keeps an object until the operator has removed what belongs to it.
const finalizer = "forkd.dev/operator"

// Labels of sandboxes in forkd's API by which the operator finds the sandbox of an object.
const (
	uidLabel       = "kube-uid"
	namespaceLabel = "kube-namespace"
	nameLabel      = "kube-name"
)

// settled is the number of intervals between two looks at a sandbox whose state is as its Sandbox
// wants. Each look costs the daemon two short requests.
const settled = 6

// Time limits of requests to daemons.
const (
	forkTimeout    = 2 * time.Minute
	suspendTimeout = 10 * time.Minute // the memory is written to the disk
)

// Reasons of the condition Ready.
const (
	reasonReady       = "Ready"
	reasonSuspended   = "Suspended"
	reasonEnded       = "Ended"
	reasonNoSnapshot  = "SnapshotNotReady"
	reasonNoNode      = "NoNode"
	reasonUnreachable = "NodeUnreachable"
	reasonGone        = "NodeGone"
	reasonRefused     = "Refused"
	reasonCreating    = "Creating"
)

// waitError says why an object is not ready yet. The operator tries again.
type waitError struct{ reason, message string }

func (e *waitError) Error() string { return e.reason + ": " + e.message }

func waiting(reason, format string, args ...any) error {
	return &waitError{reason, fmt.Sprintf(format, args...)}
}

// waitFor turns an error of a daemon, or of the connection to it, into a waitError. Other errors
// stay as they are.
func waitFor(node string, err error) error {
	var refused *forkd.Error
	var unreachable *unreachableError
	switch {
	case errors.Is(err, errGone):
		return waiting(reasonGone, "node %s has left the cluster", node)
	case errors.As(err, &unreachable):
		return waiting(reasonUnreachable, "%v", unreachable)
	case errors.As(err, &refused):
		return waiting(reasonRefused, "node %s: %s (%s)", node, refused.Message, refused.Code)
	case errors.As(err, new(*forkd.ConnectionError)), errors.Is(err, context.DeadlineExceeded):
		return waiting(reasonUnreachable, "node %s: %v", node, err)
	}
	return err
}

// sandboxes makes a sandbox for each Sandbox.
//
// A Sandbox has at most one sandbox, even if the operator is killed at any time:
//
//  1. The operator writes the chosen node into the status. The write fails if another write came
//     first.
//  2. It looks on this node for a sandbox with the Sandbox's uid as a label. If there is one, the
//     operator uses it.
//  3. If there is none, it asks this node for a sandbox, with an Idempotency-Key made from the uid.
//  4. It writes the id into the status.
//
// The node in the status changes in three cases only: its daemon has refused the request, the first
// attempt to reach the daemon has failed, or the node has left the cluster.
type sandboxes struct {
	kube.Client
	fleet *fleet
	cfg   *Config
}

func (r *sandboxes) setup(mgr ctrl.Manager) error {
	// If a Snapshot changes, all Sandboxes that wait for it are reconciled.
	waits := handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, snapshot kube.Object) (all []reconcile.Request) {
		var list v1alpha1.SandboxList
		if err := r.List(ctx, &list, kube.InNamespace(snapshot.GetNamespace())); err != nil {
			return nil // each Sandbox is tried again anyway
		}
		for _, s := range list.Items {
			if s.Spec.Snapshot == snapshot.GetName() && s.Status.ID == "" {
				all = append(all, reconcile.Request{NamespacedName: kube.ObjectKeyFromObject(&s)})
			}
		}
		return all
	})
	return ctrl.NewControllerManagedBy(mgr).
		For(&v1alpha1.Sandbox{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&v1alpha1.Snapshot{}, waits).
		WithOptions(controller.Options{MaxConcurrentReconciles: 8 * maxAtNode}).Complete(r)
}

// Reconcile implements reconcile.Reconciler.
func (r *sandboxes) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var s v1alpha1.Sandbox
	if err := r.Get(ctx, req.NamespacedName, &s); err != nil {
		return reconcile.Result{}, kube.IgnoreNotFound(err)
	}
	before := s.Status.DeepCopy()
	var err error
	switch {
	case !s.DeletionTimestamp.IsZero():
		if err = r.remove(ctx, &s); err == nil {
			if controllerutil.RemoveFinalizer(&s, finalizer) {
				err = r.Update(ctx, &s)
			}
			return later(err, 0)
		}
	case s.Status.Phase == v1alpha1.Ended:
		return reconcile.Result{}, nil
	case controllerutil.AddFinalizer(&s, finalizer):
		if err := r.Update(ctx, &s); err != nil {
			return later(err, 0)
		}
		before = s.Status.DeepCopy()
		fallthrough
	default:
		err = r.ensure(ctx, &s, before)
	}
	if errors.Is(err, errBusy) {
		return later(nil, r.cfg.Interval/8)
	}
	wait := (*waitError)(nil)
	if err != nil && !errors.As(err, &wait) {
		return later(err, 0)
	}
	if wait != nil {
		setReady(&s.Status.Conditions, s.Generation, metav1.ConditionFalse, wait.reason, wait.message)
	}
	if s.Status.Phase == "" {
		s.Status.Phase = v1alpha1.Pending
	}
	after := r.cfg.Interval
	if meta.IsStatusConditionTrue(s.Status.Conditions, v1alpha1.Ready) {
		after *= settled
	}
	return later(r.save(ctx, &s, before), after)
}

// later returns the result of a Reconcile. A conflict is not an error: the cache was too old, and
// the newer object is already on its way.
func later(err error, after time.Duration) (reconcile.Result, error) {
	if apierrors.IsConflict(err) {
		return reconcile.Result{RequeueAfter: 100 * time.Millisecond}, nil
	}
	return reconcile.Result{RequeueAfter: after}, kube.IgnoreNotFound(err)
}

// save writes the status if it differs from *before, and then copies it to *before.
func (r *sandboxes) save(ctx context.Context, s *v1alpha1.Sandbox, before *v1alpha1.SandboxStatus) error {
	if equality.Semantic.DeepEqual(&s.Status, before) {
		return nil
	}
	err := r.Status().Update(ctx, s)
	s.Status.DeepCopyInto(before)
	return err
}

func setReady(list *[]metav1.Condition, generation int64, status metav1.ConditionStatus, reason, message string) {
	meta.SetStatusCondition(list, metav1.Condition{Type: v1alpha1.Ready, Status: status, Reason: reason,
		Message: short(message), ObservedGeneration: generation})
}

// maxMessage is the maximum length of a message in a status, in bytes. Parts of messages come from
// daemons, and the API server refuses a status with very long messages.
const maxMessage = 1000

// short returns a text that fits into a status.
func short(text string) string { return strings.ToValidUTF8(text[:min(len(text), maxMessage)], "") }

// ensure makes the sandbox if there is none, and applies the operating mode. The status is written
// whenever it must be known before the next step.
func (r *sandboxes) ensure(ctx context.Context, s *v1alpha1.Sandbox, before *v1alpha1.SandboxStatus) error {
	isFirst := s.Status.Node == ""
	if isFirst {
		if err := r.place(ctx, s); err != nil {
			return err
		}
		s.Status.Phase = v1alpha1.Pending
		setReady(&s.Status.Conditions, s.Generation, metav1.ConditionFalse, reasonCreating, "on node "+s.Status.Node)
		if err := r.save(ctx, s, before); err != nil {
			return err
		}
	}
	leave, err := r.fleet.enter(s.Status.Node)
	if err != nil {
		return err
	}
	defer leave()
	c, err := r.fleet.connect(ctx, s.Status.Node)
	if s.Status.ID == "" && (errors.Is(err, errGone) || isFirst && err != nil) {
		// Either nothing was sent yet, or the node has left the cluster, together with the sandbox
		// if there was one.
		err = waitFor(s.Status.Node, err)
		s.Status.Node = ""
		return err
	}
	if err != nil {
		return waitFor(s.Status.Node, err)
	}
	if s.Status.ID == "" {
		if s.Status.ID, err = r.create(ctx, c, s); err != nil {
			return err
		}
		if r.cfg.RouterURL != "" {
			s.Status.URL = r.cfg.RouterURL + "/v1/sandboxes/" + s.Status.ID
		}
		if err := r.save(ctx, s, before); err != nil {
			return err
		}
	}
	return r.observe(ctx, c, s)
}

// tagOf returns the tag that a Snapshot has on the nodes. Names of namespaces have no dots, so tags
// of different Snapshots differ.
func tagOf(namespace, name string) string { return namespace + "." + name }

// place chooses the node of a sandbox.
func (r *sandboxes) place(ctx context.Context, s *v1alpha1.Sandbox) error {
	var snapshot v1alpha1.Snapshot
	err := r.Get(ctx, kube.ObjectKey{Namespace: s.Namespace, Name: s.Spec.Snapshot}, &snapshot)
	if apierrors.IsNotFound(err) {
		return waiting(reasonNoSnapshot, "there is no Snapshot %s in the namespace", s.Spec.Snapshot)
	}
	if err != nil {
		return err
	}
	has := map[string]bool{}
	for _, n := range snapshot.Status.Nodes {
		has[n.Name] = n.State == v1alpha1.NodeReady
	}
	// The node must have the snapshot of this Snapshot, not another one with the same tag.
	among := func(d *daemon) bool { return has[d.node] && d.matches(s.Spec.NodeSelector) }
	node, err := r.fleet.choose(ctx, tagOf(s.Namespace, s.Spec.Snapshot), string(s.UID), among)
	if err != nil {
		return waiting(reasonNoNode, "%v", err)
	}
	s.Status.Node = node
	return nil
}

// find returns the sandboxes of a Sandbox on a node.
func find(ctx context.Context, c *forkd.Client, s *v1alpha1.Sandbox) ([]forkd.Sandbox, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	list, _, err := c.SandboxPage(ctx, forkd.PageRequest{Labels: []string{uidLabel + "=" + string(s.UID)}})
	return list, err
}

// create returns the id of the sandbox on the node in the status, and makes it if there is none.
func (r *sandboxes) create(ctx context.Context, c *forkd.Client, s *v1alpha1.Sandbox) (string, error) {
	node := s.Status.Node
	list, err := find(ctx, c, s)
	if err != nil {
		return "", waitFor(node, err)
	}
	if len(list) > 0 {
		return list[0].ID, nil
	}
	ctx, cancel := context.WithTimeout(ctx, forkTimeout)
	defer cancel()
	f, err := keyed(c, fmt.Sprintf("forkd-operator/%s/%d", s.UID, s.Status.Attempt)).Fork(ctx, requestFor(s))
	var refused *forkd.Error
	switch {
	case err == nil:
		return f.Sandboxes[0].ID, nil
	case errors.Is(err, forkd.ErrOutcomeUnknown), errors.Is(err, forkd.ErrIdempotencyKeyReused):
		// The daemon no longer knows what became of the request, and has no sandbox from it.
		s.Status.Attempt++
	case errors.As(err, &refused) && refused.Code != "": // without a code, it is not an answer of the daemon
		s.Status.Node = "" // nothing was made: another node may accept the request
	}
	return "", waitFor(node, err)
}

// requestFor returns the request for the sandbox of a Sandbox.
func requestFor(s *v1alpha1.Sandbox) forkd.ForkRequest {
	labels := map[string]string{uidLabel: string(s.UID), namespaceLabel: s.Namespace, nameLabel: s.Name}
	for name, value := range s.Spec.Labels {
		if _, reserved := labels[name]; !reserved {
			labels[name] = value
		}
	}
	req := forkd.ForkRequest{SnapshotTag: tagOf(s.Namespace, s.Spec.Snapshot), N: 1, Env: s.Spec.Env, Labels: labels,
		TTLSecs: float64(s.Spec.TimeoutSeconds), IdleTimeoutSecs: float64(s.Spec.IdleTimeoutSeconds)}
	if n := s.Spec.Network; n != nil {
		req.Network = &forkd.Network{Mode: n.Mode, Allow: n.Allow, Deny: n.Deny}
	}
	return req
}

// connectTo returns a client of the daemon that has the sandbox of a Sandbox. The daemon has
// confirmed that the id in the status is of a sandbox with the Sandbox's uid as a label.
func (f *fleet) connectTo(ctx context.Context, s *v1alpha1.Sandbox) (*forkd.Client, error) {
	c, err := f.connect(ctx, s.Status.Node)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	info, err := c.Sandbox(ctx, s.Status.ID)
	if err == nil && info.Labels[uidLabel] != string(s.UID) {
		err = waiting(reasonRefused, "the sandbox %s has no label %s of this Sandbox", s.Status.ID, uidLabel)
	}
	return c, err
}

// observe applies the operating mode to a sandbox that exists, and writes its state into the status.
func (r *sandboxes) observe(ctx context.Context, c *forkd.Client, s *v1alpha1.Sandbox) error {
	asking, stop := context.WithTimeout(ctx, askTimeout) // a daemon that hangs must not keep a worker for long
	defer stop()
	info, err := c.Sandbox(asking, s.Status.ID)
	if err == nil && info.Labels[uidLabel] != string(s.UID) {
		return waiting(reasonRefused, "the sandbox %s has no label %s of this Sandbox", s.Status.ID, uidLabel)
	}
	ctx, cancel := context.WithTimeout(ctx, suspendTimeout)
	defer cancel()
	suspend := s.Spec.OperatingMode == v1alpha1.ModeSuspended
	switch {
	case err != nil:
	case suspend && (info.State == "running" || info.State == "paused"):
		info, err = c.Suspend(ctx, s.Status.ID)
	case !suspend && s.Status.Mode == v1alpha1.ModeSuspended && info.State == "suspended":
		// A sandbox that is suspended for another reason, such as its idle timeout, stays
		// suspended.
		info, err = c.Resume(ctx, s.Status.ID)
	}
	if errors.Is(err, forkd.ErrSandboxNotFound) {
		return end(s, "the sandbox was deleted, or its timeout has passed")
	}
	if err != nil {
		return waitFor(s.Status.Node, err)
	}
	s.Status.State, s.Status.Mode = short(info.State), s.Spec.OperatingMode
	switch info.State {
	case "exited":
		return end(s, "the VM has exited: "+info.ExitReason)
	case "suspended":
		s.Status.Phase = v1alpha1.Suspended
		status := metav1.ConditionFalse
		if suspend {
			status = metav1.ConditionTrue
		}
		setReady(&s.Status.Conditions, s.Generation, status, reasonSuspended,
			"a request or the operating mode Running resumes it")
	default:
		s.Status.Phase = v1alpha1.Running
		setReady(&s.Status.Conditions, s.Generation, metav1.ConditionTrue, reasonReady, "the sandbox is "+info.State)
	}
	return nil
}

func end(s *v1alpha1.Sandbox, why string) error {
	s.Status.Phase = v1alpha1.Ended
	setReady(&s.Status.Conditions, s.Generation, metav1.ConditionFalse, reasonEnded, why)
	return nil
}

// remove deletes the sandbox of a Sandbox. It fails as long as the sandbox may exist.
func (r *sandboxes) remove(ctx context.Context, s *v1alpha1.Sandbox) error {
	node := s.Status.Node
	if node == "" || !controllerutil.ContainsFinalizer(s, finalizer) {
		return nil // no node was asked for a sandbox
	}
	moved, err := r.removeFrom(ctx, s, node)
	if err != nil || !moved {
		return err
	}
	list, err := r.fleet.daemons(ctx)
	if err != nil {
		return err
	}
	for _, d := range list {
		if _, err := r.removeFrom(ctx, s, d.node); err != nil {
			return err
		}
	}
	return nil
}

// removeFrom deletes the sandbox of a Sandbox on one node. It also reports whether the sandbox has moved from
// there to another node.
func (r *sandboxes) removeFrom(ctx context.Context, s *v1alpha1.Sandbox, node string) (moved bool, err error) {
	leave, err := r.fleet.enter(node)
	if err != nil {
		return false, err
	}
	defer leave()
	c, err := r.fleet.connect(ctx, node)
	if errors.Is(err, errGone) {
		return false, nil
	}
	if err != nil {
		return false, waitFor(node, err)
	}
	list, err := find(ctx, c, s)
	if err != nil {
		return false, waitFor(node, err)
	}
	ctx, cancel := context.WithTimeout(ctx, forkTimeout)
	defer cancel()
	for _, sandbox := range list {
		if err := c.Kill(ctx, sandbox.ID); err != nil && !errors.Is(err, forkd.ErrSandboxNotFound) {
			return false, waitFor(node, err)
		}
	}
	if len(list) > 0 || s.Status.ID == "" {
		return false, nil
	}
	// A sandbox that is moving is in no list.
	_, err = c.Sandbox(ctx, s.Status.ID)
	switch {
	case errors.Is(err, forkd.ErrSandboxMoved):
		return true, nil
	case err == nil, errors.Is(err, forkd.ErrSandboxNotFound):
		return false, nil // nil: the sandbox has lost its label, or belongs to another object
	}
	return false, waitFor(node, err)
}

// keyed returns a client whose requests have an Idempotency-Key.
func keyed(c *forkd.Client, key string) *forkd.Client {
	return forkd.Over(&keyedTransport{c.Transport(), key})
}

type keyedTransport struct {
	http.RoundTripper
	key string
}

// RoundTrip implements http.RoundTripper.
func (t *keyedTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	req = req.Clone(req.Context())
	req.Header.Set("Idempotency-Key", t.key)
	return t.RoundTripper.RoundTrip(req)
}
