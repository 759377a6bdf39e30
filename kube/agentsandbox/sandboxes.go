package agentsandbox

import (
	"context"
	"errors"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	kube "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/forkd/forkd/kube/api/v1alpha1"
)

// workers is the number of objects that a controller reconciles at the same time. A Reconcile only
// talks to the API server.
const workers = 8

// sandboxes makes a Sandbox (forkd.dev) of the same name for each Sandbox (agents.x-k8s.io).
type sandboxes struct {
	kube.Client
	direct   kube.Reader // the API server: a deletion must not miss an object that was just made
	interval time.Duration
}

func (r *sandboxes) setup(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).Named("agent-sandbox").For(newObject(sandboxKind)).Owns(&v1alpha1.Sandbox{}).
		WithOptions(controller.Options{MaxConcurrentReconciles: workers}).Complete(r)
}

// Reconcile implements reconcile.Reconciler.
func (r *sandboxes) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	s, err := load(ctx, r, sandboxKind, req.NamespacedName)
	if err != nil || s == nil {
		return later(err, 0)
	}
	if s.GetDeletionTimestamp() != nil {
		left, err := r.removeInner(ctx, s)
		if err != nil || left {
			return later(err, r.interval)
		}
		if controllerutil.RemoveFinalizer(s, finalizer) {
			err = r.Update(ctx, s.Unstructured)
		}
		return later(err, 0)
	}
	if controllerutil.AddFinalizer(s, finalizer) {
		if err := r.Update(ctx, s.Unstructured); err != nil {
			return later(err, 0)
		}
	}
	after, err := r.ensure(ctx, s)
	var p *problem
	if errors.As(err, &p) {
		s.set(conditionReady, false, p.reason, "%s", p.message)
		err, after = nil, 6*r.interval
	}
	if err != nil {
		return later(err, 0)
	}
	return later(s.save(ctx, r.Client), after)
}

// inner reads the Sandbox (forkd.dev) of a Sandbox, or returns nil. An object of the same name that
// belongs to something else is an error.
func (r *sandboxes) inner(ctx context.Context, s *object) (*v1alpha1.Sandbox, error) {
	var in v1alpha1.Sandbox
	exists, err := get(ctx, r, s.GetNamespace(), s.GetName(), &in)
	if err != nil || !exists {
		return nil, err
	}
	if !isInner(&in, s.GetUID()) {
		return nil, wrong(reasonInvalid, "there is another Sandbox (forkd.dev) with the name %s: choose another name",
			s.GetName())
	}
	return &in, nil
}

// ensure makes the Sandbox (forkd.dev), applies the operating mode and copies the state into the
// status. It returns the time until the next look.
func (r *sandboxes) ensure(ctx context.Context, s *object) (time.Duration, error) {
	var spec sandboxSpec
	if err := parse(s.Unstructured, &spec); err != nil {
		return 0, err
	}
	if hasPassed(spec.ShutdownTime) {
		return r.expire(ctx, s, &spec)
	}
	in, err := r.inner(ctx, s)
	if err != nil {
		return 0, err
	}
	snapshot, network, err := check(s.Unstructured)
	if err == nil {
		err = spec.check()
	}
	if err != nil {
		return 0, err
	}
	want := spec.template(snapshot, network, spec.ShutdownTime)
	if in == nil {
		if in, err = r.create(ctx, s, want, &spec); err != nil {
			return 0, err
		}
	}
	if mode := v1alpha1.Mode(spec.OperatingMode); mode != "" && in.Spec.OperatingMode != mode {
		in.Spec.OperatingMode = mode
		if err := r.Update(ctx, in); err != nil {
			return 0, err
		}
	}
	r.applied(s, in, want, &spec)
	r.observe(s, in)
	return until(spec.ShutdownTime, 6*r.interval), nil
}

func (r *sandboxes) create(ctx context.Context, s *object, want v1alpha1.SandboxTemplate, spec *sandboxSpec) (
	*v1alpha1.Sandbox, error) {
	in := &v1alpha1.Sandbox{ObjectMeta: metav1.ObjectMeta{Namespace: s.GetNamespace(), Name: s.GetName(),
		Labels: map[string]string{ownerLabel: string(s.GetUID())}},
		Spec: v1alpha1.SandboxSpec{SandboxTemplate: want, OperatingMode: v1alpha1.Mode(spec.OperatingMode)}}
	if err := controllerutil.SetControllerReference(s.Unstructured, in, r.Scheme()); err != nil {
		return nil, err
	}
	err := r.Create(ctx, in)
	if refused(err) {
		return nil, wrong(reasonInvalid, "%v", err)
	}
	return in, err
}

// applied says in a condition which parts of the object have no effect.
func (r *sandboxes) applied(s *object, in *v1alpha1.Sandbox, want v1alpha1.SandboxTemplate, spec *sandboxSpec) {
	var texts []string
	if list := spec.replaced(); len(list) > 0 {
		texts = append(texts, "the snapshot decides what these fields say: "+strings.Join(list, ", "))
	}
	want.TimeoutSeconds = in.Spec.TimeoutSeconds // depends on the time of its making
	if !equality.Semantic.DeepEqual(in.Spec.SandboxTemplate, want) {
		texts = append(texts, "the sandbox keeps the annotations and the podTemplate with which it was made")
	}
	if len(texts) > 0 {
		s.set(conditionApplied, false, "WithoutEffect", "%s", strings.Join(texts, "; "))
		return
	}
	s.set(conditionApplied, true, "Applied", "all fields have an effect")
}

// observe copies the state of the Sandbox (forkd.dev) into the status.
func (r *sandboxes) observe(s *object, in *v1alpha1.Sandbox) {
	ready := meta.FindStatusCondition(in.Status.Conditions, v1alpha1.Ready)
	message := "the Sandbox (forkd.dev) is new"
	if ready != nil {
		message = ready.Reason + ": " + ready.Message
	}
	// The status may be older than the mode that was just set.
	suspends := in.Spec.OperatingMode == v1alpha1.ModeSuspended
	isSuspended := suspends && in.Status.Phase == v1alpha1.Suspended
	s.status.NodeName = in.Status.Node
	switch {
	case !in.DeletionTimestamp.IsZero():
		s.set(conditionReady, false, reasonNotReady, "the Sandbox (forkd.dev) is being deleted")
	case in.Status.Phase == v1alpha1.Ended:
		s.set(conditionReady, false, reasonFailed, "%s", message)
	case suspends:
		s.set(conditionReady, false, reasonSuspended, "operatingMode is Suspended")
	case in.Status.Phase == v1alpha1.Running && in.Status.Mode == in.Spec.OperatingMode && ready != nil &&
		ready.Status == metav1.ConditionTrue:
		s.set(conditionReady, true, reasonReady, "%s", message)
	default:
		s.set(conditionReady, false, reasonNotReady, "%s", message)
	}
	switch {
	case isSuspended:
		s.set(conditionSuspended, true, "PodTerminated", "the memory is on the disk of node %s", in.Status.Node)
	case suspends:
		s.set(conditionSuspended, false, "PodTerminating", "%s", message)
	case meta.FindStatusCondition(s.status.Conditions, conditionSuspended) != nil:
		s.set(conditionSuspended, false, "NotSuspended", "operatingMode is Running")
	}
}

// expire deletes what belongs to a Sandbox whose shutdownTime has passed.
func (r *sandboxes) expire(ctx context.Context, s *object, spec *sandboxSpec) (time.Duration, error) {
	left, err := r.removeInner(ctx, s)
	if err != nil {
		return 0, err
	}
	s.status.NodeName = ""
	s.set(conditionReady, false, reasonExpired, "shutdownTime has passed")
	if !left && spec.ShutdownPolicy == policyDelete {
		uid := s.GetUID()
		return r.interval, kube.IgnoreNotFound(r.Delete(ctx, s.Unstructured, kube.Preconditions{UID: &uid}))
	}
	return r.interval, nil
}

// removeInner deletes the Sandbox (forkd.dev) of a Sandbox, and reports whether it still exists.
func (r *sandboxes) removeInner(ctx context.Context, s *object) (bool, error) {
	var in v1alpha1.Sandbox
	exists, err := get(ctx, r.direct, s.GetNamespace(), s.GetName(), &in)
	if err != nil || !exists || !isInner(&in, s.GetUID()) {
		return false, err
	}
	if !in.DeletionTimestamp.IsZero() {
		return true, nil
	}
	return true, kube.IgnoreNotFound(r.Delete(ctx, &in, kube.Preconditions{UID: &in.UID}))
}

// isInner reports whether a Sandbox (forkd.dev) belongs to the Sandbox (agents.x-k8s.io) with a uid.
func isInner(in *v1alpha1.Sandbox, owner types.UID) bool {
	return owner != "" && in.Labels[ownerLabel] == string(owner)
}
