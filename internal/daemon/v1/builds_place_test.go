package v1_test

import (
	"context"
	"testing"
	"time"

	"github.com/forkd/forkd/internal/apirig"
	"github.com/forkd/forkd/internal/build/dockerfile"
	"github.com/forkd/forkd/internal/build/plan"
	"github.com/forkd/forkd/internal/daemon/build"
	"github.com/forkd/forkd/internal/host/bake"
	"github.com/forkd/forkd/internal/host/imagevm"
)

type unobserved struct{}

func (unobserved) Planned(*plan.Plan)              {}
func (unobserved) Step(int, string, time.Duration) {}
func (unobserved) Output(int, string)              {}

// While a client waits for a builder VM, another client that has a builder VM can make the same
// image.
func TestAWaitingClientKeepsNoImage(t *testing.T) {
	r := start(t, apirig.Options{})
	cfg := r.Plans
	cfg.Dir = t.TempDir()
	waits, release := make(chan struct{}), make(chan struct{})
	left := 0
	cfg.Place = func(context.Context, string) (func(), error) {
		close(waits)
		<-release
		return func() { left++ }, nil
	}
	cfg.Boot = func(ctx context.Context, i build.Image, report func(string)) (bake.Request, error) {
		if i.Client == "token:busy" && i.Place == nil {
			return bake.Request{}, imagevm.ErrNoPlace
		}
		return r.Plans.Boot(ctx, i, report)
	}
	b, err := build.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	run := func(who, tag string) build.Result {
		files, err := b.NewContext(who)
		if err != nil {
			t.Error(err)
			return build.Result{}
		}
		defer files.Close()
		res, err := b.Build(t.Context(), build.Request{Who: who, Admin: true, Tag: tag,
			Dockerfile: dockerfile.Request{Name: "Dockerfile", Text: []byte("FROM " + apirig.Image)}}, files, unobserved{})
		if err != nil {
			t.Errorf("%s: %v", who, err)
		}
		return res
	}
	ended := make(chan build.Result)
	go func() { ended <- run("token:busy", "one") }()
	<-waits
	other := make(chan build.Result, 1)
	go func() { other <- run("token:other", "two") }()
	select {
	case <-other:
	case <-time.After(time.Minute):
		t.Fatal("the other client waits as well")
	}
	close(release)
	if res := <-ended; res.Cached != 1 || left != 1 {
		t.Errorf("then: %+v, want the other's image; the place was freed %d times", res, left)
	}
}
