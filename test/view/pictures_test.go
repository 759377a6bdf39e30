package view

import (
	"bytes"
	"flag"
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
)

var update = flag.Bool("update", false, "write the pictures of docs/ui.md")

// TestPictures takes the pictures of docs/ui.md, in both themes.
func TestPictures(t *testing.T) {
	r := startRig(t, "-guest-dirty=24117248")
	story(r)
	v := startView(t, r.URL, r.Token)
	p := newBrowser(t)
	p.open(v)
	for _, theme := range []string{"light", "dark"} {
		p.theme(theme)
		p.wait(`document.querySelectorAll(".row .meter").length >= 3`)
		p.shot("tree-" + theme)
		p.eval(`location.hash = "#/sandbox/" + document.querySelector(".facts dd:nth-of-type(2)").textContent`)
		p.wait(`document.querySelector(".xterm-rows")?.innerText.includes("#") || document.querySelector(".xterm-rows")?.innerText.includes("$")`)
		p.shot("terminal-" + theme)
		p.eval(`location.hash = location.hash.replace("sandbox", "try")`)
		if theme == "light" { // the dark picture shows the same run
			p.inForks(`echo "attempt $FORKD_TRY_INDEX"; exit $((FORKD_TRY_INDEX % 2))`)
		}
		p.waitText("3 of 3 forks ended")
		p.shot("forks-" + theme)
		p.eval(`location.hash = "#/"`)
	}
	p.clean(statsOfEnded)
}

// story makes the tree of snapshots and sandboxes that the pictures show.
func story(r *rig) {
	r.bake("python-numpy")
	first := r.fork("python-numpy", 1, map[string]string{"name": "setup", "job": "7"})[0]
	r.branch(first, "deps-installed")
	tries := r.fork("deps-installed", 3, nil)
	for i, name := range []string{"try-sqlite", "try-duckdb", "try-pandas"} {
		r.call("PATCH", "/v1/sandboxes/"+tries[i]+"/labels", map[string]string{"name": name, "job": "7"}, nil)
	}
	r.branch(tries[1], "tests-pass")
	last := r.fork("tests-pass", 2, nil)
	r.call("PATCH", "/v1/sandboxes/"+last[0]+"/labels", map[string]string{"name": "review"}, nil)
	r.call("POST", "/v1/sandboxes/"+tries[2]+"/pause", struct{}{}, nil)
	r.call("POST", "/v1/sandboxes/"+last[1]+"/suspend", struct{}{}, nil)
}

// theme makes the browser ask for a light or a dark page.
func (p *page) theme(name string) {
	p.t.Helper()
	_, err := chromedp.Call(p.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: name}}})
	if err != nil {
		p.fail("choose the theme", err)
	}
}

// maxPicture bounds the size of a picture, in bytes.
const maxPicture = 150 << 10

func (p *page) shot(name string) {
	p.t.Helper()
	raw, err := chromedp.Run(p.ctx, chromedp.CaptureScreenshot())
	if err != nil {
		p.fail("take the picture "+name, err)
	}
	small, err := fewerColours(raw)
	if err != nil {
		p.fail("compress the picture "+name, err)
	}
	if len(small) > maxPicture {
		p.t.Errorf("the picture %s has %d bytes, at most %d", name, len(small), maxPicture)
	}
	if !*update {
		return
	}
	path := filepath.Join("../../docs/pictures", "ui-"+name+".png")
	if err := os.WriteFile(path, small, 0o644); err != nil {
		p.t.Fatal(err)
	}
}

// fewerColours returns a PNG with the 256 most frequent colours of another PNG.
func fewerColours(from []byte) ([]byte, error) {
	picture, err := png.Decode(bytes.NewReader(from))
	if err != nil {
		return nil, err
	}
	bounds, counts := picture.Bounds(), map[color.Color]int{}
	for y := bounds.Min.Y; y < bounds.Max.Y; y++ {
		for x := bounds.Min.X; x < bounds.Max.X; x++ {
			counts[picture.At(x, y)]++
		}
	}
	colours := slices.SortedFunc(maps.Keys(counts), func(a, b color.Color) int { return counts[b] - counts[a] })
	out := image.NewPaletted(bounds, colours[:min(len(colours), 256)])
	draw.Draw(out, bounds, picture, bounds.Min, draw.Src)
	var to bytes.Buffer
	err = (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&to, out)
	return to.Bytes(), err
}
