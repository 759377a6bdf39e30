package mcp

import (
	"context"

	"github.com/forkd/forkd/client"
)

// family holds the ancestry of snapshots and sandboxes.
type family struct {
	nodes map[string]*treeNode // by snapshotKey or sandboxKey
	order []string             // order of the API: snapshots by tag, then sandboxes by age
}

// The prefixes distinguish tags from ids, because a tag may look like an id.
func snapshotKey(tag string) string { return "snapshot " + tag }
func sandboxKey(id string) string   { return "sandbox " + id }

// origin is what a tree needs of a snapshot or a sandbox.
type origin struct {
	name, state string
	box         string // of a snapshot: the sandbox that it is a branch of
	tag         string // the snapshot that it was branched from, or runs from
}

func snapshotOrigin(s client.Snapshot) origin {
	return origin{s.Tag, s.Status, s.SandboxID, s.BranchedFrom}
}
func sandboxOrigin(s client.Sandbox) origin { return origin{s.ID, s.State, "", s.SnapshotTag} }

// origins returns the origins of the members of a list, at most maxFamily, and how many it omits;
// see pages.
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
// from. A branch is below the sandbox that it was made of or, if that is gone, below that sandbox's
// snapshot. Even if the daemon's answers are wrong, each occurs once and none is its own ancestor.
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

// join makes a node a child of another node, and reports whether it did. It does not if the parent
// is missing, or runs from its own branch.
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

// keepLine drops every node that is neither key's node nor an ancestor or a descendant of it.
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
