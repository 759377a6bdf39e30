package artifact

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
)

// HotType is the type of an artifact that refers to a snapshot and says which frames the first
// forks of the snapshot need. It is also the type of the artifact's only file.
const HotType = "application/vnd.forkd.snapshot.hot.v1+json"

// MaxHot is the maximum size of such a file, in bytes.
const MaxHot = 256 << 10

// maxHotBlobs is the maximum number of blobs in such a file: 64 layers of memory, 64 layers of a disk
// and a base image.
const maxHotBlobs = 129

// maxFrames is more than the number of frames of any blob.
const maxFrames = maxIndex / frameHead

// Hot maps the digests of blobs to the frames that the first forks of a snapshot need. It is only a
// hint: a wrong hint changes only the order and the number of the frames that are fetched.
type Hot map[digest.Digest][]FrameRun

// FrameRun is the frames First to End-1 of a blob.
type FrameRun struct{ First, End int }

// hotFile is the JSON in the file:
//
//	{"blobs": {"sha256:…": [[0, 4], [9, 10]]}}
//
// The numbers are the frames First and End of each run. Runs ascend, and there is at least one
// frame between two runs.
type hotFile struct {
	Blobs map[digest.Digest][][2]int `json:"blobs"`
}

// HotOf returns the runs of the given frames, which may be in any order.
func HotOf(frames map[digest.Digest][]int) Hot {
	h := make(Hot)
	for d, list := range frames {
		list = slices.Compact(slices.Sorted(slices.Values(list)))
		for _, n := range list {
			if runs := h[d]; len(runs) > 0 && runs[len(runs)-1].End == n {
				runs[len(runs)-1].End++
				continue
			}
			h[d] = append(h[d], FrameRun{n, n + 1})
		}
	}
	return h
}

// Frames returns the number of frames.
func (h Hot) Frames() (n int) {
	for _, runs := range h {
		for _, r := range runs {
			n += r.End - r.First
		}
	}
	return n
}

// Encode returns the file. The same runs give the same bytes.
func (h Hot) Encode() ([]byte, error) {
	f := hotFile{Blobs: make(map[digest.Digest][][2]int)}
	for d, runs := range h {
		for _, r := range runs {
			f.Blobs[d] = append(f.Blobs[d], [2]int{r.First, r.End})
		}
	}
	p, err := json.Marshal(f)
	if err == nil && len(p) > MaxHot {
		err = fmt.Errorf("the first forks need frames in too many places: the list would have %d bytes, at most %d",
			len(p), MaxHot)
	}
	return p, err
}

// Fit returns a list that Encode accepts. If the frames are in too many places, the list also has
// the frames in the shortest gaps between them.
func (h Hot) Fit() Hot {
	for gap := 1; ; gap *= 2 { // ends, because each blob has a single run in the end
		if _, err := h.Encode(); err == nil {
			return h
		}
		fewer := make(Hot)
		for d, runs := range h {
			for _, r := range runs {
				if last := len(fewer[d]) - 1; last >= 0 && r.First-fewer[d][last].End <= gap {
					fewer[d][last].End = r.End
					continue
				}
				fewer[d] = append(fewer[d], r)
			}
		}
		h = fewer
	}
}

// ParseHot decodes and checks a file. If it is not valid, the error is an *Error. The caller compares
// the runs with the number of frames of each blob, see Hot.Of.
func ParseHot(p []byte) (Hot, error) {
	if len(p) > MaxHot {
		return nil, invalid("a list of frames with %d bytes: at most %d", len(p), MaxHot)
	}
	d := json.NewDecoder(strings.NewReader(string(p)))
	d.DisallowUnknownFields()
	var f hotFile
	if err := d.Decode(&f); err != nil {
		return nil, invalid("the list of frames cannot be read")
	}
	if _, err := d.Token(); err != io.EOF || len(f.Blobs) == 0 || len(f.Blobs) > maxHotBlobs {
		return nil, invalid("want a list of frames for 1 to %d blobs", maxHotBlobs)
	}
	h := make(Hot)
	for name, runs := range f.Blobs {
		if err := checkDigest(name); err != nil {
			return nil, err
		}
		next := 0
		for _, r := range runs {
			if r[0] < next || r[1] <= r[0] || r[1] > maxFrames { // without the bound, next could overflow
				return nil, invalid("the runs of frames do not ascend, or end after frame %d", maxFrames)
			}
			h[name] = append(h[name], FrameRun{r[0], r[1]})
			next = r[1] + 1
		}
	}
	return h, nil
}

// Of returns the runs of a blob that has the given number of frames. If a run is outside of the blob,
// the error is an *Error.
func (h Hot) Of(d digest.Digest, frames int) ([]FrameRun, error) {
	runs := h[d]
	if len(runs) > 0 && runs[len(runs)-1].End > frames {
		return nil, invalid("the list of frames names frame %d of a blob with %d", runs[len(runs)-1].End-1, frames)
	}
	return runs, nil
}
