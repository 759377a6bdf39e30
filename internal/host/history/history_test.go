package history

import (
	"fmt"
	"math"
	"strconv"
	"testing"
	"time"
)

// rig is a recorder of sandboxes that each use half a CPU. The test sets its clock.
type rig struct {
	*Recorder
	now     time.Time
	passed  time.Duration
	ids     []string
	asleep  map[string]bool
	used    map[string]float64 // CPU seconds that each sandbox had used when it was made
	reads   int
	memory  float64
	hostCPU float64
}

func newRig(ids ...string) *rig {
	r := &rig{now: time.Unix(1_700_000_000, 0), ids: ids, asleep: map[string]bool{}, used: map[string]float64{},
		memory: 1 << 20}
	r.Recorder = New(Config{
		IDs: func() []string { return r.ids },
		Read: func(id string) (Sandbox, bool) {
			if r.asleep[id] {
				return Sandbox{}, false
			}
			r.reads++
			return Sandbox{CPU: r.used[id] + r.passed.Seconds()/2, Memory: r.memory, Own: r.memory / 2}, true
		},
		ReadHost: func() (Host, bool) { return Host{CPU: r.hostCPU, Available: 1 << 30}, true },
		Now:      func() time.Time { return r.now },
		Elapsed:  func() time.Duration { return r.passed },
	})
	return r
}

// bytes returns the memory of all points of sandboxes.
func (r *Recorder) bytes() (total int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.sandboxes {
		total += s.second.bytes() + s.minute.bytes()
	}
	return total
}

// run samples n times, one second apart.
func (r *rig) run(n int) {
	for range n {
		r.now, r.passed = r.now.Add(time.Second), r.passed+time.Second
		r.hostCPU += 1.5
		r.Sample()
	}
}

func TestPointsOfSecondsAndMinutes(t *testing.T) {
	r := newRig("a")
	r.run(150)
	r.memory *= 3 // only in one second
	r.run(1)
	r.memory /= 3
	r.run(149)
	seconds, minutes := r.OfSandbox("a", Range{}), r.OfSandbox("a", Range{Minutes: true})
	if len(seconds) != 299 || len(minutes) != 6 {
		t.Fatalf("%d points of seconds, %d of minutes, want 299 and 6", len(seconds), len(minutes))
	}
	for i, p := range seconds {
		if want := r.now.Add(time.Duration(i-298) * time.Second); !p.At.Equal(want) || math.Abs(p.Figures.CPU-0.5) > 1e-3 {
			t.Fatalf("point %d: %+v, want %v", i, p, want)
		}
	}
	if p := minutes[2].Figures; p.Memory != 3<<20 || math.Abs(p.CPU-0.5) > 1e-3 {
		t.Errorf("the third minute is %+v: want its highest memory, and its mean use of processors", p)
	}
	part := r.OfSandbox("a", Range{From: r.now.Add(-20 * time.Second), To: r.now.Add(-11 * time.Second)})
	if len(part) != 10 || !part[9].At.Equal(r.now.Add(-11*time.Second)) {
		t.Errorf("%d points of ten seconds: %+v", len(part), part)
	}
	if p := r.OfSandbox("a", Range{From: r.now, To: r.now.Add(-time.Hour)}); len(p) > 0 {
		t.Errorf("%d points of a reversed range", len(p))
	}
	if p := r.OfSandbox("b", Range{}); len(p) > 0 {
		t.Errorf("%d points of an unknown sandbox", len(p))
	}
	host := r.OfHost(Range{})
	if p := host[len(host)-1].Figures; p.CPU != 1.5 || p.Running != 1 || p.Sandboxes != 1 || p.Available != 1<<30 {
		t.Errorf("host: %+v", p)
	}
}

// maxSandboxBytes is how much memory the history of a sandbox takes at most, according to the
// documentation.
const maxSandboxBytes = 48_960

func TestMemoryOfASandboxIsBounded(t *testing.T) {
	r := newRig("a")
	r.run(3 * 24 * 3600)
	seconds, minutes := r.OfSandbox("a", Range{}), r.OfSandbox("a", Range{Minutes: true})
	if len(seconds) != maxSeconds || len(minutes) < maxMinutes || len(minutes) > maxMinutes+1 {
		t.Errorf("%d points of seconds, %d of minutes", len(seconds), len(minutes))
	}
	if n := r.bytes(); n > maxSandboxBytes {
		t.Errorf("a sandbox takes %d bytes, want at most %d", n, maxSandboxBytes)
	}
}

func TestSandboxesComeAndGo(t *testing.T) {
	r := newRig()
	for i := range 10_000 {
		r.ids = append(r.ids, strconv.Itoa(i))
		if len(r.ids) > 20 {
			r.ids = r.ids[1:]
		}
		if i%4 == 0 {
			r.run(1)
		}
	}
	if n := r.Histories(); n > 20 {
		t.Errorf("%d histories are kept of %d sandboxes", n, len(r.ids))
	}
	if n := r.bytes(); n > 20*minRing*24 {
		t.Errorf("20 sandboxes that lived for a few seconds take %d bytes", n)
	}
	r.ids = nil
	r.run(1)
	if n := r.Histories(); n > 0 {
		t.Errorf("%d histories of ended sandboxes", n)
	}
}

// If there are more sandboxes than can be read in a second, all of them are read equally often, and
// they share the memory of the points for minutes.
func TestManySandboxesTakeTurns(t *testing.T) {
	r := newRig()
	const n = 4 * maxPerTick
	for i := range n {
		r.ids = append(r.ids, fmt.Sprint("sb-", i))
	}
	r.run(60)
	r.reads = 0
	r.run(40)
	if r.reads > 40*maxPerTick {
		t.Errorf("%d reads in 40 seconds, want at most %d", r.reads, 40*maxPerTick)
	}
	for _, id := range r.ids {
		if got := len(r.OfSandbox(id, Range{From: r.now.Add(-40 * time.Second)})); got < 8 || got > 12 {
			t.Errorf("%s has %d points of 40 seconds, want 10", id, got)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range 20_000 {
		r.sandboxes[fmt.Sprint("more-", i)] = newSeries(sandboxKinds)
	}
	if most := r.mostMinutesLocked(); most*len(r.sandboxes) > maxPoints || most < minMinutes {
		t.Errorf("%d sandboxes may have %d points each", len(r.sandboxes), most)
	}
}

func TestASleepingSandboxIsNotRead(t *testing.T) {
	r := newRig("a")
	r.run(30)
	r.asleep["a"] = true
	r.run(1)
	r.reads = 0
	r.run(120)
	if got := len(r.OfSandbox("a", Range{})); r.reads != 0 || got != 29 {
		t.Errorf("%d reads of a sandbox that sleeps, and %d points, want 0 and 29", r.reads, got)
	}
	// The totals of a new VMM process begin at zero again. The difference must not be taken for a
	// negative use.
	r.used["a"] = -r.passed.Seconds() / 2
	r.asleep["a"] = false
	r.run(30)
	for _, p := range r.OfSandbox("a", Range{}) {
		if p.Figures.CPU < 0 || p.Figures.CPU > 1 {
			t.Errorf("%+v", p)
		}
	}
	r.asleep["a"] = true
	r.run(25 * 3600)
	if n := r.bytes(); n > 0 {
		t.Errorf("a sandbox that has slept for a day takes %d bytes", n)
	}
}

func TestTheClockIsSet(t *testing.T) {
	for _, step := range []time.Duration{-48 * time.Hour, -time.Minute, time.Minute, 48 * time.Hour} {
		r := newRig("a")
		r.run(60)
		r.now = r.now.Add(step)
		r.run(60)
		points := r.OfSandbox("a", Range{From: r.now.Add(-90 * time.Second), To: r.now})
		if len(points) != 91 {
			t.Errorf("%v: %d points of 91 seconds", step, len(points))
		}
		for i := 1; i < len(points); i++ {
			if d := points[i].At.Sub(points[i-1].At); d != time.Second {
				t.Errorf("%v: points %v apart", step, d)
			}
		}
		if began := r.Began(); !began.Equal(r.now.Add(-2 * time.Minute)) {
			t.Errorf("%v: began %v before now", step, r.now.Sub(began))
		}
	}
}

func TestANewProcessCountsFromZero(t *testing.T) {
	r := newRig("a")
	r.run(10)
	r.used["a"] = -100
	r.run(10)
	if got := len(r.OfSandbox("a", Range{})); got != 18 { // the readings at the start and after the change add no point
		t.Errorf("%d points, want 18", got)
	}
}

func TestProcFiles(t *testing.T) {
	stat := []byte("cpu  100 20 30 4000 500 6 7 8 90 0\ncpu0 1 2 3\n")
	if got, err := busy(stat); err != nil || math.Abs(got-1.71) > 1e-9 {
		t.Errorf("%v seconds, %v; want 1.71", got, err)
	}
	for _, wrong := range []string{"", "cpu", "cpu a b c d e f g h", "intr 1 2 3 4 5 6 7 8"} {
		if got, err := busy([]byte(wrong)); err == nil {
			t.Errorf("%q: %v", wrong, got)
		}
	}
	if got := kib([]byte("MemTotal: 5 kB\nShmem:   12 kB\n"), "Shmem:"); got != 12 {
		t.Errorf("%v KiB", got)
	}
	if got := kib([]byte("Shmem:\nShmem: x kB\n"), "Shmem:"); got != 0 {
		t.Errorf("%v KiB of a broken file", got)
	}
}

func BenchmarkSample1000(b *testing.B) {
	r := newRig()
	for i := range 1000 {
		r.ids = append(r.ids, fmt.Sprint("sb-", i))
	}
	for b.Loop() {
		r.run(1)
	}
}
