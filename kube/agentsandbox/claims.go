package agentsandbox

import (
	"context"
	"errors"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	ctrl "sigs.k8s.io/controller-runtime"
	kube "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// templateAnnotation is agent-sandbox's annotation with the name of a Sandbox's template.
const templateAnnotation = "agents.x-k8s.io/sandbox-template-ref"

// claims makes a Sandbox (agents.x-k8s.io) of the same name for each SandboxClaim.
type claims struct {
	kube.Client
	direct   kube.Reader // the API server: a deletion must not miss an object that was just made
	interval time.Duration
}

func (r *claims) setup(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).Named("agent-sandbox-claim").For(newObject(claimKind)).
		Owns(newObject(sandboxKind)).WithOptions(controller.Options{MaxConcurrentReconciles: workers}).Complete(r)
}

// Reconcile implements reconcile.Reconciler.
func (r *claims) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	c, err := load(ctx, r, claimKind, req.NamespacedName)
	if err != nil || c == nil {
		return later(err, 0)
	}
	if c.GetDeletionTimestamp() != nil {
		left, err := r.removeSandbox(ctx, c)
		if err != nil || left {
			return later(err, r.interval)
		}
		if controllerutil.RemoveFinalizer(c, finalizer) {
			err = r.Update(ctx, c.Unstructured)
		}
		return later(err, 0)
	}
	if controllerutil.AddFinalizer(c, finalizer) {
		if err := r.Update(ctx, c.Unstructured); err != nil {
			return later(err, 0)
		}
	}
	after, err := r.ensure(ctx, c)
	var p *problem
	if errors.As(err, &p) {
		c.set(conditionReady, false, p.reason, "%s", p.message)
		err, after = nil, r.interval // the pool or the template may appear
	}
	if err != nil {
		return later(err, 0)
	}
	return later(c.save(ctx, r.Client), after)
}

// ensure makes the Sandbox of a claim, and copies its condition Ready. It returns the time until the
// next look.
func (r *claims) ensure(ctx context.Context, c *object) (time.Duration, error) {
	var spec claimSpec
	if err := parse(c.Unstructured, &spec); err != nil {
		return 0, err
	}
	if hasPassed(spec.Lifecycle.ShutdownTime) {
		return r.expire(ctx, c, &spec)
	}
	s, err := load(ctx, r, sandboxKind, kube.ObjectKeyFromObject(c))
	if err != nil {
		return 0, err
	}
	if s == nil {
		if s, err = r.create(ctx, c, &spec); err != nil {
			return 0, err
		}
	}
	if !metav1.IsControlledBy(s, c) {
		return 0, wrong(reasonInvalid, "there is another Sandbox with the name %s: choose another name", c.GetName())
	}
	c.status.Sandbox = &claimed{Name: s.GetName()}
	ready := meta.FindStatusCondition(s.status.Conditions, conditionReady)
	switch {
	case s.GetDeletionTimestamp() != nil || ready == nil || ready.ObservedGeneration < s.GetGeneration():
		c.set(conditionReady, false, reasonSandboxNotReady, "the Sandbox %s has no state yet, or is being deleted",
			s.GetName())
	default:
		c.set(conditionReady, ready.Status == metav1.ConditionTrue, ready.Reason, "%s", ready.Message)
	}
	return until(spec.Lifecycle.ShutdownTime, 6*r.interval), nil
}

// create makes the Sandbox of a claim from the template of its pool.
func (r *claims) create(ctx context.Context, c *object, claim *claimSpec) (*object, error) {
	pool, template := newObject(poolKind), newObject(templateKind)
	exists, err := get(ctx, r, c.GetNamespace(), claim.WarmPoolRef.Name, pool)
	if err != nil {
		return nil, err
	}
	if !exists {
		return nil, wrong(reasonNoPool, "there is no SandboxWarmPool %q in the namespace", claim.WarmPoolRef.Name)
	}
	var ps poolSpec
	if err := parse(pool, &ps); err != nil {
		return nil, err
	}
	if exists, err = get(ctx, r, c.GetNamespace(), ps.SandboxTemplateRef.Name, template); err != nil {
		return nil, err
	}
	if !exists {
		return nil, wrong(reasonNoTemplate, "there is no SandboxTemplate %q in the namespace", ps.SandboxTemplateRef.Name)
	}
	var ts templateSpec
	if err := parse(template, &ts); err != nil {
		return nil, err
	}
	snapshot, network, err := check(template)
	if err != nil {
		return nil, err
	}
	spec, network, err := sandboxFor(claim, &ts, network)
	if err != nil {
		return nil, err
	}
	text, err := runtime.DefaultUnstructuredConverter.ToUnstructured(spec)
	if err != nil {
		return nil, err
	}
	s := &object{Unstructured: newObject(sandboxKind)}
	s.SetNamespace(c.GetNamespace())
	s.SetName(c.GetName())
	s.SetLabels(map[string]string{"agents.x-k8s.io/created-by": "forkd-operator"})
	notes := map[string]string{SnapshotAnnotation: snapshot, templateAnnotation: template.GetName()}
	if network != "" {
		notes[NetworkAnnotation] = network
	}
	s.SetAnnotations(notes)
	s.Object["spec"] = text
	if err := controllerutil.SetControllerReference(c.Unstructured, s.Unstructured, r.Scheme()); err != nil {
		return nil, err
	}
	if err = r.Create(ctx, s.Unstructured); refused(err) {
		return nil, wrong(reasonInvalid, "%v", err)
	}
	return s, err
}

// expire deletes the Sandbox of a claim whose shutdownTime has passed, and the claim itself if its
// shutdownPolicy says so.
func (r *claims) expire(ctx context.Context, c *object, spec *claimSpec) (time.Duration, error) {
	left, err := r.removeSandbox(ctx, c)
	if err != nil {
		return 0, err
	}
	c.status.Sandbox = nil
	c.set(conditionReady, false, reasonClaimExpired, "shutdownTime has passed")
	switch policy := spec.Lifecycle.ShutdownPolicy; {
	case left:
		return r.interval, nil
	case policy == policyDelete || policy == policyForeground:
		uid := c.GetUID()
		return r.interval, kube.IgnoreNotFound(r.Delete(ctx, c.Unstructured, kube.Preconditions{UID: &uid}))
	}
	return 6 * r.interval, nil
}

// removeSandbox deletes the Sandbox of a claim, and reports whether it still exists.
func (r *claims) removeSandbox(ctx context.Context, c *object) (bool, error) {
	s := newObject(sandboxKind)
	exists, err := get(ctx, r.direct, c.GetNamespace(), c.GetName(), s)
	if err != nil || !exists || !metav1.IsControlledBy(s, c) {
		return false, err
	}
	if s.GetDeletionTimestamp() != nil {
		return true, nil
	}
	uid := s.GetUID()
	return true, kube.IgnoreNotFound(r.Delete(ctx, s, kube.Preconditions{UID: &uid}))
}
