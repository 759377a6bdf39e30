package main

import (
	"context"
	"fmt"

	"github.com/forkd/forkd/bench/internal/lab"
	"github.com/forkd/forkd/internal/host/sandbox"
)

// tag is the tag of this program's only snapshot.
const tag = "bench"

// guest is the kind of guest that is forked: how its parent's snapshot is made, and how a child
// answers.
type guest struct {
	name   string
	bake   func(ctx context.Context, m *lab.Manager) error
	client func(_, vsock string) sandbox.Guest // stands in for the agent; nil: the agent itself
}

// linuxGuest is a guest with the image of a recipe, baked in the same way as by `forkd build`, and with
// the given number of volume slots.
func linuxGuest(d *lab.Daemon, recipe string, memoryMiB uint64, slots uint) *guest {
	return &guest{name: recipe, bake: func(ctx context.Context, m *lab.Manager) error {
		r, err := d.Recipe(recipe)
		if err != nil {
			return err
		}
		r.Tag, r.MemoryMiB, r.VolumeSlots = tag, memoryMiB, uint32(slots)
		return m.Bake(ctx, r)
	}}
}

// stubGuest is a guest that runs a stub (package stub), with the given number of volume slots. Its
// memory map has the given number of additional extents.
func stubGuest(d *lab.Daemon, memoryMiB uint64, extents int, slots uint) *guest {
	name := "stub"
	if extents > 0 {
		name = fmt.Sprintf("stub with %d extents more", extents)
	}
	return &guest{
		name: name,
		bake: func(ctx context.Context, m *lab.Manager) error {
			return d.BakeStub(ctx, m, tag, memoryMiB, extents, slots)
		},
		client: lab.StubClient,
	}
}
