package mcp

import (
	"context"

	"github.com/forkd/forkd/client"
)

// family holds the ancestry of snapshots and sandboxes.
type family struct {
	nodes map[string]*treeNode // key: snapshotKey or sandboxKey
	order []string             // keys in the order of the API: snapshots by tag, then sandboxes by age
}

// The prefixes keep tags and ids apart, because a tag may look like an id.
func snapshotKey(tag string) string { return "snapshot " + tag }
func sandboxKey(id string) string   { return "sandbox " + id }

// origin has the fields of a snapshot or a sandbox that a tree needs.
type origin struct {
	name, state string
	box         string // for a snapshot: the sandbox that was branched
	tag         string // the snapshot that the sandbox runs from; for a branch: the snapshot that its source ran from
}

func snapshotOrigin(s client.Snapshot) origin {
	return origin{s.Tag, s.Status, s.SandboxID, s.BranchedFrom}
}
func sandboxOrigin(s client.Sandbox) origin { return origin{s.ID, s.State, "", s.SnapshotTag} }

// origins returns the origins of up to maxFamily members of a list. It also returns the number of
// further members; see pages.
func origins[T any](ctx context.Context, page pageOf[T], of func(T) origin) (all []origin, omitted int, err error) {
	omitted, err = pages(ctx, page, func(member T) bool {
		if len(all) == maxFamily {
			return false
		}
		all = append(all, of(member))
		return true
	})
	return all, omitted, err
}

// familyOf arranges snapshots and sandboxes in a tree. A sandbox is below the snapshot that it runs
// from. A branch is below the sandbox that was branched. If that sandbox no longer exists, the
// branch is below the snapshot from which the sandbox ran. Each snapshot or sandbox occurs only
// once, and is not its own ancestor, even if the daemon's answers contradict each other.
func familyOf(snapshots, sandboxes []origin) *family {
	f := &family{nodes: map[string]*treeNode{}}
	for _, s := range snapshots {
		f.add(snapshotKey(s.name), &treeNode{Snapshot: s.name, State: s.state})
	}
	for _, s := range sandboxes {
		f.add(sandboxKey(s.name), &treeNode{Sandbox: s.name, State: s.state})
		f.join(sandboxKey(s.name), snapshotKey(s.tag))
	}
	for _, s := range snapshots {
		if !f.join(snapshotKey(s.name), sandboxKey(s.box)) {
			f.join(snapshotKey(s.name), snapshotKey(s.tag))
		}
	}
	return f
}

func (f *family) add(key string, n *treeNode) {
	if f.nodes[key] == nil {
		f.order = append(f.order, key)
		f.nodes[key] = n
	}
}

// join makes a node a child of another node and returns true. It returns false if the parent does
// not exist, or is itself a descendant of the child.
func (f *family) join(child, parent string) bool {
	if f.nodes[parent] == nil {
		return false
	}
	for key := parent; key != ""; key = f.nodes[key].parent {
		if key == child {
			return false
		}
	}
	f.nodes[child].parent = parent
	f.nodes[child].Parent = f.nodes[parent].name()
	return true
}

// keepLine keeps only the node with the given key, the node's ancestors and its descendants.
func (f *family) keepLine(key string) {
	keep := map[string]bool{}
	for k := key; f.nodes[k] != nil; k = f.nodes[k].parent {
		keep[k] = true
	}
	var kept []string
	for _, k := range f.order {
		if keep[k] || f.descends(k, key) {
			kept = append(kept, k)
		}
	}
	f.order = kept
}

func (f *family) descends(key, from string) bool {
	for ; key != ""; key = f.nodes[key].parent {
		if key == from {
			return true
		}
	}
	return false
}

// walk calls visit for every node, parents before children.
func (f *family) walk(visit func(n *treeNode, depth int)) {
	below := map[string][]string{}
	for _, key := range f.order {
		parent := f.nodes[key].parent
		below[parent] = append(below[parent], key)
	}
	var down func(parent string, depth int)
	down = func(parent string, depth int) {
		for _, key := range below[parent] {
			visit(f.nodes[key], depth)
			down(key, depth+1)
		}
	}
	down("", 0)
}
