package operator

import (
	"context"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	kube "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/forkd/forkd/kube/api/v1alpha1"
)

// maxMade is the maximum number of Sandboxes that a pool makes or deletes before it counts again.
const maxMade = 50

// pools keeps the number of unclaimed Sandboxes of each pool. It talks only to the API server.
//
// It counts the Sandboxes that the API server has, not those in the cache, so a Sandbox that it has
// just made is included. Only the leader of the operators reconciles pools, one pool at a time.
type pools struct {
	kube.Client
	direct kube.Reader
	cfg    *Config
}

func (r *pools) setup(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).For(&v1alpha1.SandboxPool{}).Owns(&v1alpha1.Sandbox{}).Complete(r)
}

// Reconcile implements reconcile.Reconciler.
func (r *pools) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var p v1alpha1.SandboxPool
	if err := r.direct.Get(ctx, req.NamespacedName, &p); err != nil {
		return reconcile.Result{}, kube.IgnoreNotFound(err)
	}
	ends := !p.DeletionTimestamp.IsZero()
	if !ends && controllerutil.AddFinalizer(&p, finalizer) {
		if err := r.Update(ctx, &p); err != nil {
			return later(err, 0)
		}
	}
	members, err := r.members(ctx, &p)
	if err != nil {
		return later(err, 0)
	}
	wanted := int(p.Spec.Replicas)
	if ends {
		wanted = 0
	}
	left, err := r.adjust(ctx, &p, members, wanted)
	if err != nil {
		return later(err, 0)
	}
	if ends && left == 0 {
		controllerutil.RemoveFinalizer(&p, finalizer)
		return later(r.Update(ctx, &p), 0)
	}
	before := p.Status
	p.Status = v1alpha1.SandboxPoolStatus{ObservedGeneration: p.Generation, Total: int32(left),
		Selector: v1alpha1.PoolLabel + "=" + p.Name + ",!" + v1alpha1.ClaimLabel}
	for _, s := range members {
		if s.Status.Phase == v1alpha1.Running && isAlive(&s) {
			p.Status.Ready++
		}
	}
	p.Status.Ready = min(p.Status.Ready, p.Status.Total)
	if !equality.Semantic.DeepEqual(before, p.Status) {
		err = r.Status().Update(ctx, &p)
	}
	return later(err, r.cfg.Interval)
}

// members returns the unclaimed Sandboxes of a pool that are not being deleted. It takes claimed
// Sandboxes out of the pool, so that they stay when the pool is deleted.
func (r *pools) members(ctx context.Context, p *v1alpha1.SandboxPool) (members []v1alpha1.Sandbox, err error) {
	var list v1alpha1.SandboxList
	if err := r.direct.List(ctx, &list, kube.InNamespace(p.Namespace),
		kube.MatchingLabels{v1alpha1.PoolLabel: p.Name}); err != nil {
		return nil, err
	}
	for _, s := range list.Items {
		_, claimed := s.Labels[v1alpha1.ClaimLabel]
		switch {
		case !metav1.IsControlledBy(&s, p) || !s.DeletionTimestamp.IsZero():
		case claimed:
			isPool := func(o metav1.OwnerReference) bool { return o.UID == p.UID }
			s.OwnerReferences = slices.DeleteFunc(s.OwnerReferences, isPool)
			if err := r.Update(ctx, &s); err != nil {
				return nil, err
			}
		default:
			members = append(members, s)
		}
	}
	return members, nil
}

// isAlive reports whether a member of a pool counts. A member does not count if its sandbox has
// ended, or has left with its node.
func isAlive(s *v1alpha1.Sandbox) bool {
	ready := meta.FindStatusCondition(s.Status.Conditions, v1alpha1.Ready)
	return s.Status.Phase != v1alpha1.Ended && (ready == nil || ready.Reason != reasonGone)
}

// worth orders members by what their loss would cost.
func worth(s *v1alpha1.Sandbox) int {
	switch {
	case !isAlive(s):
		return 0
	case s.Status.ID == "":
		return 1
	case s.Status.Phase != v1alpha1.Running:
		return 2
	}
	return 3
}

// adjust makes or deletes Sandboxes, and returns the new number of Sandboxes of the pool.
func (r *pools) adjust(ctx context.Context, p *v1alpha1.SandboxPool, members []v1alpha1.Sandbox, wanted int) (
	left int, err error) {
	slices.SortStableFunc(members, func(a, b v1alpha1.Sandbox) int { return worth(&b) - worth(&a) })
	left = len(members)
	for made := 0; left > 0 && made < maxMade && (left > wanted || !isAlive(&members[left-1])); made++ {
		s := &members[left-1]
		// If the Sandbox has changed since it was read, it may have been claimed.
		exactly := kube.Preconditions{UID: &s.UID, ResourceVersion: &s.ResourceVersion}
		if err := kube.IgnoreNotFound(r.Delete(ctx, s, exactly)); err != nil {
			return left, err
		}
		left--
	}
	for made := 0; left < wanted && made < maxMade; made++ {
		s := &v1alpha1.Sandbox{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, GenerateName: p.Name + "-",
			Labels: map[string]string{v1alpha1.PoolLabel: p.Name}},
			Spec: v1alpha1.SandboxSpec{SandboxTemplate: *p.Spec.Template.DeepCopy()}}
		if err := controllerutil.SetControllerReference(p, s, r.Scheme()); err != nil {
			return left, err
		}
		if err := r.Create(ctx, s); err != nil {
			return left, err
		}
		left++
	}
	return left, nil
}
