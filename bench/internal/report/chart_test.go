package report

import (
	"encoding/xml"
	"math"
	"strings"
	"testing"
)

func TestChart(t *testing.T) {
	c := &Chart{Title: "a < b", Subtitle: "here", Unit: "ms", Groups: []ChartGroup{
		{Name: "n = 1", Bars: []ChartBar{{Name: "us", Value: 2, Ours: true}, {Name: "them & others", Value: 8},
			{Name: "gone", Missing: "not installed"}, {Name: "late", Value: math.NaN()}}},
		{Name: "n = 100", Bars: []ChartBar{{Name: "us", Value: 250}}},
		{Name: "nothing"},
	}}
	var doc struct {
		Height int `xml:"height,attr"`
		Rects  []struct {
			Fill  string `xml:"fill,attr"`
			Width string `xml:"width,attr"`
		} `xml:"rect"`
		Texts []struct {
			Y    int    `xml:"y,attr"`
			Text string `xml:",chardata"`
		} `xml:"text"`
	}
	svg := c.SVG()
	if err := xml.Unmarshal(svg, &doc); err != nil {
		t.Fatalf("%v in\n%s", err, svg)
	}
	var widths []string
	for _, r := range doc.Rects[1:] { // the first one is the background
		widths = append(widths, r.Width)
	}
	if got := strings.Join(widths, " "); got != "125.0 500.0 500.0" {
		t.Errorf("bars are %s long", got)
	}
	if doc.Rects[1].Fill == doc.Rects[2].Fill {
		t.Error("ours has the colour of the others")
	}
	var texts []string
	for _, text := range doc.Texts {
		texts = append(texts, text.Text)
		if text.Y > doc.Height {
			t.Errorf("%q is at %d, below the end at %d", text.Text, text.Y, doc.Height)
		}
	}
	want := "a < b|here|n = 1|us|2.00 ms|them & others|8.00 ms|gone|not installed|late|not measured|n = 100|us|250 ms|nothing"
	if got := strings.Join(texts, "|"); got != want {
		t.Errorf("it says %s\nwant %s", got, want)
	}
}
