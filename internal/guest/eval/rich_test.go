package eval

import (
	"encoding/json"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
)

// pythons runs a test with both Python backends. Their environment has pandas and matplotlib.
func pythons(t *testing.T, test func(t *testing.T, s *Server, h *httptest.Server)) {
	for name, of := range map[string]func(string) (*backend, error){"own": ownPython, "jupyter": backendOf} {
		t.Run(name, func(t *testing.T) {
			s, h := serve(t, jupyterEnv(t), of)
			test(t, s, h)
		})
	}
}

// results runs code as a client of E2B does and returns its results.
func results(t *testing.T, h *httptest.Server, code string) []map[string]any {
	t.Helper()
	got := run(t, h, map[string]any{"code": code})
	if name := field(got, "error", "name"); name != "" {
		t.Fatalf("%s: %v", code, got)
	}
	var out []map[string]any
	for _, m := range got {
		if m["type"] == "result" {
			out = append(out, m)
		}
	}
	return out
}

func TestResultsOfPython(t *testing.T) {
	pythons(t, func(t *testing.T, s *Server, h *httptest.Server) {
		for code, want := range map[string]string{
			"'it'": "it", "    x = 6\n    x * 7": "42", "import asyncio\nawait asyncio.sleep(0, 7)": "7",
		} {
			if got := results(t, h, code); len(got) != 1 || got[0]["text"] != want || got[0]["is_main_result"] != true {
				t.Errorf("%q: %v", code, got)
			}
		}
		if got := field(run(t, h, code("'it'")), "result", "text"); got != "'it'" {
			t.Errorf("the repr is %s", got)
		}
		got := results(t, h, "class R:\n  def _repr_html_(self): return '<b>'\n  def _repr_latex_(self): return '$x$'\n"+
			"  def _repr_mimebundle_(self, **_): return {'application/x-own': 'o'}\n  def __repr__(self): return 'R'\ndisplay(1)\nR()")
		if len(got) != 2 || got[0]["is_main_result"] != false || got[1]["html"] != "<b>" || got[1]["latex"] != "$x$" {
			t.Errorf("%v", got)
		}
		if extra, _ := got[1]["extra"].(map[string]any); extra["application/x-own"] != "o" {
			t.Errorf("extra: %v", got[1])
		}
		got = results(t, h, "import pandas as pd\npd.DataFrame({'n': [1, 2], 'f': [0.5, float('nan')], 't': pd.to_datetime(['2020-01-02', None]), 's': ['a', 'b']})")
		want := map[string]any{"n": []any{1., 2.}, "f": []any{.5, nil}, "t": []any{"2020-01-02T00:00:00", nil},
			"s": []any{"a", "b"}}
		if !reflect.DeepEqual(got[0]["data"], want) || !strings.Contains(got[0]["html"].(string), "<table") {
			t.Errorf("the data frame is %v", got)
		}
	})
}

// plots has pieces of code that draw figures. e2b-charts makes charts from all figures except the
// marked figures.
var plots = map[string]struct{ code, kind string }{
	"line":       {"plt.plot([1, 2, 3], [4, 5.5, 6], label='a'); plt.plot([1, 2], [0, 3]); plt.xlabel('time (s)'); plt.ylabel('way [m]'); plt.title('T')", "line"},
	"logarithm":  {"plt.plot([1, 10, 100], [1, 2, 3]); plt.xscale('log')", "line"},
	"dates":      {"import datetime as d; plt.plot([d.date(2024, 1, n) for n in (1, 2, 3)], [1, 2, 3])", "line"},
	"categories": {"plt.plot(['a', 'b', 'c'], [1, 2, 3])", "line"},
	"scatter":    {"plt.scatter([1, 2, 3], [4.5, 5, 6], label='s'); plt.grid()", "scatter"},
	"bars":       {"plt.bar(['A', 'B', 'C'], [3, 5, 2]); plt.xlabel('who')", "bar"},
	"lying bars": {"plt.barh(['A', 'B', 'C'], [3, 5, 2]); plt.xlabel('how many')", "bar"},
	"groups":     {"plt.bar(['A', 'B'], [3, 5], label='one'); plt.bar(['A', 'B'], [1, 2], label='two')", "bar"},
	"pie":        {"plt.pie([1, 2, 5], labels=['a', 'b', 'c']); plt.title('P')", "pie"},
	"boxes": {"plt.boxplot([[1, 2, 3, 4, 5, 20], [2, 3, 4, 8, 9]], patch_artist=True); plt.ylabel('size (cm)')",
		"box_and_whisker"},
	"two axes": {"f, (a, b) = plt.subplots(2); a.plot([1, 2], [3, 4]); b.bar(['x', 'y'], [1, 2]); f.suptitle('both')",
		"superchart"},
	"image":       {"plt.imshow([[1, 2], [3, 4]])", "unknown"},
	"equal bars*": {"plt.bar(['A', 'B'], [3, 3])", "bar"},
}

func TestChartsAreThoseOfE2B(t *testing.T) {
	pythons(t, func(t *testing.T, s *Server, h *httptest.Server) {
		run(t, h, code("import json\nimport matplotlib.pyplot as plt\nfrom e2b_charts import chart_figure_to_dict"))
		for name, plot := range plots {
			got := run(t, h, map[string]any{"code": plot.code + "\nprint(json.dumps(chart_figure_to_dict(plt.gcf())))"})
			var chart any
			for _, m := range got {
				if c, ok := m["chart"]; ok {
					chart = c
					if m["png"] == nil {
						t.Errorf("%s: no picture", name)
					}
				}
			}
			if is, _ := chart.(map[string]any); is["type"] != plot.kind {
				t.Errorf("%s: %v", name, got)
			}
			var theirs any
			if err := json.Unmarshal([]byte(field(got, "stdout", "text")), &theirs); err != nil {
				t.Fatal(err, got)
			}
			if !strings.HasSuffix(name, "*") && !reflect.DeepEqual(chart, theirs) {
				t.Errorf("%s:\n%v, theirs\n%v", name, chart, theirs)
			}
		}
	})
}

func TestTheKernelIsIdleOnlyWhenNothingWaits(t *testing.T) {
	s, h := serve(t, jupyterEnv(t), backendOf)
	run(t, h, code("1"))
	for _, c := range []struct {
		what, code string
		idle       bool
	}{
		{"nothing", "None", true},
		{"a task", "import asyncio; task = asyncio.create_task(asyncio.sleep(1000))", false},
		{"no task", "task.cancel(); None", true},
		{"a thread", "import threading, time; threading.Thread(target=time.sleep, args=(60,), daemon=True).start()", false},
	} {
		run(t, h, code(c.code))
		if err := s.Prepare(); err != nil {
			t.Fatal(err)
		}
		if got := s.get(python).interp.idle; got != c.idle {
			t.Errorf("%s waits in the kernel: idle is %v", c.what, got)
		}
	}
	session := "get_ipython().kernel.session"
	before := field(run(t, h, code("("+session+".session, "+session+".key)")), "result", "text")
	if err := s.Forked(nil); err != nil {
		t.Fatal(err)
	}
	if after := field(run(t, h, code("("+session+".session, "+session+".key)")), "result", "text"); after == before ||
		after == "" {
		t.Errorf("after a fork session and key are %s as before", after)
	}
}
