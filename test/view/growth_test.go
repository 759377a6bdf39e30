package view

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/chromedp/chromedp"
)

// TestTreeGrows changes sandboxes and snapshots at random. The page changes its tree by events. After
// each round, another tab makes its tree from the daemon's lists, and both trees must be equal.
func TestTreeGrows(t *testing.T) {
	const seed = 29
	random := rand.New(rand.NewPCG(seed, seed))
	d, p := openTree(t)
	address := eval[string](p, `location.href`)
	fresh := newTab(t, p.ctx)
	c := changes{d: d, random: random, boxes: []string{"sb-a"}, tags: []string{"base"}}
	for round := range 18 {
		// New and deleted sandboxes usually do not make the page arrange its whole tree.
		for range []int{20, 2, 2}[round%3] {
			[]func(){c.next, c.fork, c.kill}[round%3]()
		}
		fresh.do("list everything", chromedp.Navigate("about:blank"), chromedp.Navigate(address))
		fresh.wait(`document.querySelector(".link-state.live") && document.querySelector("[role=treeitem]")`)
		// The tab may still be reading records of snapshots, such as deleted snapshots that
		// sandboxes name.
		fresh.wait(shownTree + `.split("\n").length === ` + fmt.Sprint(len(c.boxes)+len(c.tags)-c.hidden()))
		want := eval[string](fresh, shownTree)
		p.wait(shownTree + ` === ` + quoted(want))
		if t.Failed() {
			return
		}
	}
	p.clean()
}

// changes makes random changes.
type changes struct {
	d           *fakeDaemon
	random      *rand.Rand
	boxes, tags []string
	n           int
}

// maxGrown bounds the nodes of the tree before a round, so that all nodes are on the screen.
const maxGrown = 15

// hidden returns the number of snapshots that the tree hides, because no sandbox needs them.
func (c *changes) hidden() int {
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	used := map[any]bool{}
	for _, r := range c.d.sandboxes.records {
		used[r["snapshot_tag"]] = true
	}
	n := 0
	for _, tag := range c.tags {
		if c.d.snapshots.records[tag]["transient"] == true && !used[tag] {
			n++
		}
	}
	return n
}

func pick(random *rand.Rand, list []string) (item string, rest []string) {
	i := random.IntN(len(list))
	return list[i], append(append(rest, list[:i]...), list[i+1:]...)
}

// next makes one change, and emits its event.
func (c *changes) next() {
	c.n++
	d, kind := c.d, c.random.IntN(10)
	if len(c.boxes)+len(c.tags) >= maxGrown {
		kind = 9
	}
	switch {
	case kind < 4:
		c.fork()
	case kind < 6 && len(c.boxes) > 0:
		from, _ := pick(c.random, c.boxes)
		tag := fmt.Sprintf("branch-%03d", c.n)
		d.snapshot(tag, record{"created_at_unix": c.now(), "sandbox_id": from, "branched_from": "base",
			"transient": kind == 5})
		d.mu.Lock()
		r := d.snapshots.records[tag]
		d.mu.Unlock()
		d.emit("snapshot.created", from, tag, record{"snapshot": r})
		c.tags = append(c.tags, tag)
	case kind < 7 && len(c.boxes) > 0: // a rollback
		id, _ := pick(c.random, c.boxes)
		tag, _ := pick(c.random, c.tags)
		d.change("sandbox.restoring", id, record{"state": "restoring"})
		d.change("sandbox.running", id, record{"state": "running", "snapshot_tag": tag})
	case kind < 8 && len(c.tags) > 1:
		var tag string
		tag, c.tags = pick(c.random, c.tags)
		d.remove("snapshot.deleted", tag)
	default:
		c.kill()
	}
}

// now returns the time of the daemon's clock, which may be set back.
func (c *changes) now() int { return 2 + c.random.IntN(5) }

// fork creates a sandbox. Its snapshot may no longer exist.
func (c *changes) fork() {
	c.n++
	id := fmt.Sprintf("sb-%03d", c.n)
	tag, _ := pick(c.random, append([]string{"gone"}, c.tags...))
	owner := []string{"token:a", "token:a", "token:a", "token:b"}[c.random.IntN(4)]
	c.d.sandbox(id, record{"created_at_unix": c.now(), "snapshot_tag": tag, "owner": owner})
	c.d.mu.Lock()
	r := c.d.sandboxes.records[id]
	c.d.mu.Unlock()
	c.d.emit("sandbox.created", id, tag, record{"sandbox": r})
	c.boxes = append(c.boxes, id)
}

func (c *changes) kill() {
	if len(c.boxes) == 0 {
		return
	}
	var id string
	id, c.boxes = pick(c.random, c.boxes)
	c.d.remove("sandbox.deleted", id)
}
