package report

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"math"
	"strconv"
)

// Chart shows groups of horizontal bars, each with its figure. Each group has its own scale, which
// begins at 0. So only bars of the same group can be compared.
type Chart struct {
	Title, Subtitle string
	Unit            string
	Groups          []ChartGroup
}

// ChartGroup is a group of bars to compare.
type ChartGroup struct {
	Name string
	Bars []ChartBar
}

// ChartBar is one figure.
type ChartBar struct {
	Name    string
	Value   float64 // above 0; 0 if there is no figure
	Missing string  // reason why there is no figure
	Ours    bool    // drawn in another colour
}

// Dimensions of a chart, in the user units of SVG, and its colours. The chart has a white
// background, whatever the colour of the page is.
const (
	chartWidth    = 820
	chartBarLeft  = 220
	chartBarRight = 720 // right end of the longest bar; the figure is printed to the right of each bar
	chartRow      = 18
	chartGroup    = 30
	chartHead     = 58

	chartOurs, chartOthers, chartInk, chartFaint = "#1f6feb", "#9aa4b0", "#1f2328", "#6a737d"
)

// SVG draws the chart.
func (c *Chart) SVG() []byte {
	height := chartHead
	for _, g := range c.Groups {
		height += chartGroup + len(g.Bars)*chartRow
	}
	height += chartRow / 2
	var b bytes.Buffer
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %[1]d %[2]d" `+
		`font-family="system-ui, sans-serif" font-size="12">`+"\n", chartWidth, height)
	b.WriteString(`<rect width="100%" height="100%" fill="#ffffff"/>` + "\n")
	text := func(x float64, y int, anchor, style, s string) {
		fmt.Fprintf(&b, `<text x="%.1f" y="%d" text-anchor="%s" %s>`, x, y, anchor, style)
		_ = xml.EscapeText(&b, []byte(s)) // writing to a bytes.Buffer never fails
		b.WriteString("</text>\n")
	}
	ink, faint := `fill="`+chartInk+`"`, `fill="`+chartFaint+`"`
	text(16, 24, "start", ink+` font-size="15" font-weight="600"`, c.Title)
	text(16, 42, "start", faint, c.Subtitle)
	y := chartHead
	for _, g := range c.Groups {
		y += chartGroup
		longest := g.longest()
		text(16, y-8, "start", ink+` font-weight="600"`, g.Name)
		for i := range g.Bars {
			bar := &g.Bars[i]
			text(chartBarLeft-8, y+13, "end", ink, bar.Name)
			if !bar.measured() {
				why := bar.Missing
				if why == "" {
					why = "not measured"
				}
				text(chartBarLeft+4, y+13, "start", faint, why)
				y += chartRow
				continue
			}
			colour := chartOthers
			if bar.Ours {
				colour = chartOurs
			}
			fmt.Fprintf(&b, `<rect x="%d" y="%d" width="%.1f" height="%d" fill="%s"/>`+"\n", chartBarLeft, y+2,
				max((chartBarRight-chartBarLeft)*bar.Value/longest, 1), chartRow-4, colour)
			text(chartBarLeft+(chartBarRight-chartBarLeft)*bar.Value/longest+5, y+13, "start", ink, figure(bar.Value)+" "+c.Unit)
			y += chartRow
		}
	}
	b.WriteString("</svg>\n")
	return b.Bytes()
}

// measured reports whether the bar has a figure.
func (b *ChartBar) measured() bool { return b.Value > 0 && !math.IsInf(b.Value, 0) }

func (g *ChartGroup) longest() (v float64) {
	for i := range g.Bars {
		if bar := &g.Bars[i]; bar.measured() {
			v = max(v, bar.Value)
		}
	}
	return v
}

// figure returns v with at most two digits after the point: one if v is at least 10, none if v is
// at least 100.
func figure(v float64) string {
	digits := 2
	switch {
	case v >= 100:
		digits = 0
	case v >= 10:
		digits = 1
	}
	return strconv.FormatFloat(v, 'f', digits, 64)
}
