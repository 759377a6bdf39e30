package artifact

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
)

// A list of frames becomes runs, and the file has the same runs.
func TestHotRoundTrip(t *testing.T) {
	a, b := digest.FromString("a"), digest.FromString("b")
	h := HotOf(map[digest.Digest][]int{a: {9, 2, 1, 2, 0, 4}, b: {7}})
	want := Hot{a: {{0, 3}, {4, 5}, {9, 10}}, b: {{7, 8}}}
	if !reflect.DeepEqual(h, want) {
		t.Errorf("%v, want %v", h, want)
	}
	p, err := h.Encode()
	if err != nil {
		t.Fatal(err)
	}
	got, err := ParseHot(p)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%s: %v, %v", p, got, err)
	}
	if runs, err := got.Of(a, 10); err != nil || len(runs) != 3 {
		t.Errorf("%v, %v", runs, err)
	}
	if runs, err := got.Of(digest.FromString("c"), 0); err != nil || runs != nil {
		t.Errorf("another blob: %v, %v", runs, err)
	}
	if _, err := got.Of(a, 9); !errors.As(err, new(*Error)) {
		t.Errorf("a blob with fewer frames: %v", err)
	}
	scattered := make([]int, 100_000)
	for i := range scattered {
		scattered[i] = 2 * i
	}
	if p, err := HotOf(map[digest.Digest][]int{a: scattered}).Encode(); err == nil {
		t.Errorf("a file of %d bytes", len(p))
	}
}

func TestHostileHot(t *testing.T) {
	d := digest.FromString("a").String()
	many := new(strings.Builder)
	for i := range maxHotBlobs + 1 {
		fmt.Fprintf(many, `,%q:[[0,1]]`, digest.FromString(fmt.Sprint(i)))
	}
	for name, text := range map[string]string{
		"no JSON":         "hot",
		"empty":           "",
		"no blobs":        `{}`,
		"null":            `null`,
		"another field":   `{"blobs":{"` + d + `":[[0,1]]},"more":1}`,
		"more behind it":  `{"blobs":{"` + d + `":[[0,1]]}} {}`,
		"descending":      `{"blobs":{"` + d + `":[[5,6],[0,1]]}}`,
		"overlapping":     `{"blobs":{"` + d + `":[[0,5],[4,6]]}}`,
		"touching":        `{"blobs":{"` + d + `":[[0,5],[5,6]]}}`,
		"the same twice":  `{"blobs":{"` + d + `":[[0,5],[0,5]]}}`,
		"no frames":       `{"blobs":{"` + d + `":[[5,5]]}}`,
		"negative":        `{"blobs":{"` + d + `":[[-1,5]]}}`,
		"one number":      `{"blobs":{"` + d + `":[[5]]}}`,
		"too large":       `{"blobs":{"` + d + `":[[0,99999999999999999999]]}}`,
		"overflowing":     `{"blobs":{"` + d + `":[[0,9223372036854775807],[0,1]]}}`,
		"no digest":       `{"blobs":{"../../etc/passwd":[[0,1]]}}`,
		"another digest":  `{"blobs":{"sha512:00":[[0,1]]}}`,
		"too many blobs":  `{"blobs":{` + many.String()[1:] + `}}`,
		"too many bytes":  `{"blobs":{"` + d + `":[[0,1]]}}` + strings.Repeat(" ", MaxHot),
		"deeply nested":   strings.Repeat(`{"blobs":`, 20_000),
		"a list of blobs": `{"blobs":[1]}`,
	} {
		if h, err := ParseHot([]byte(text)); !errors.As(err, new(*Error)) {
			t.Errorf("%s: %v, %v", name, h, err)
		}
	}
}

func FuzzParseHot(f *testing.F) {
	for _, runs := range []string{"[0,4],[9,10]", "[0,9223372036854775807],[0,1]"} {
		f.Add([]byte(`{"blobs":{"` + digest.FromString("a").String() + `":[` + runs + `]}}`))
	}
	f.Fuzz(func(t *testing.T, p []byte) {
		h, err := ParseHot(p)
		if err != nil {
			return
		}
		for d := range h {
			runs, err := h.Of(d, 1000)
			last := -1
			for _, r := range runs {
				if err == nil && (r.First <= last || r.End <= r.First || r.End > 1000) {
					t.Fatalf("%v", runs)
				}
				last = r.End
			}
		}
		if _, err := h.Encode(); err != nil && len(p) < MaxHot/2 {
			t.Fatal(err)
		}
	})
}

// Memory layers have small frames, whose number is bounded. The frames of other files have the same
// size as in earlier releases, so that the blobs of these files stay the same.
func TestFrameSizes(t *testing.T) {
	for _, c := range []struct {
		name  string
		bytes uint64
		want  int
	}{
		{MemoryPart + "0", 1 << 20, 16 << 10},
		{MemoryPart + "7", 1 << 30, 16 << 10},
		{MemoryPart + "0", 1<<30 + 1<<20, 32 << 10},
		{MemoryPart + "0", 8 << 30, 128 << 10},
		{MemoryPart + "0", 1 << 40, FrameBytes},
		{BasePart, 1 << 20, FrameBytes},
		{DiskPart + "0", 1 << 20, FrameBytes},
		{StatePart, 1 << 10, FrameBytes},
		{MapPart, 1 << 10, FrameBytes},
	} {
		if got := frameBytesOf(Part{Name: c.name, Bytes: c.bytes}); got != c.want {
			t.Errorf("%s of %d bytes has frames of %d, want %d", c.name, c.bytes, got, c.want)
		}
	}
	p := content(1<<20, 3)
	b, coded := encode(t, MemoryPart+"0", p)
	if got, err := decode(t.Context(), b, coded); err != nil || string(got) != string(p) {
		t.Errorf("the content differs, %v", err)
	}
	frames, err := ParseFrames(coded[b.Size-b.IndexBytes:], b)
	if err != nil || frames.Len() < (1<<20)/3/(32<<10) {
		t.Errorf("%d frames, %v", frames.Len(), err)
	}
}

// If the frames of a list are in too many places, Fit adds frames between them until the list can
// be encoded. The list keeps all of its frames, and a run that is far from the other runs is not
// joined to them.
func TestHotFits(t *testing.T) {
	d := digest.FromString("x")
	var frames []int
	for n := range 100_000 {
		frames = append(frames, 2*n)
		if n%10 == 0 {
			frames = append(frames, 2*n+1)
		}
	}
	const far = 1 << 20
	h := HotOf(map[digest.Digest][]int{d: append(frames, far)})
	if _, err := h.Encode(); err == nil {
		t.Fatal("the list is short enough for any file")
	}
	text, err := h.Fit().Encode()
	if err != nil {
		t.Fatal(err)
	}
	fit, err := ParseHot(text)
	if err != nil {
		t.Fatal(err)
	}
	runs := fit[d]
	for _, n := range append(frames, far) {
		for len(runs) > 0 && runs[0].End <= n {
			runs = runs[1:]
		}
		if len(runs) == 0 || runs[0].First > n {
			t.Fatalf("frame %d is missing", n)
		}
	}
	if last := fit[d][len(fit[d])-1]; last != (FrameRun{far, far + 1}) {
		t.Errorf("the last run is %v", last)
	}
	small := HotOf(map[digest.Digest][]int{d: {1, 3}})
	if got := small.Fit(); !reflect.DeepEqual(got, small) {
		t.Errorf("a short list becomes %v", got)
	}
}
