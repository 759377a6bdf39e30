package cli

import (
	"testing"
	"time"
)

func TestSecondsValue(t *testing.T) {
	for text, want := range map[string]time.Duration{"90": 90 * time.Second, "1.5": 1500 * time.Millisecond,
		"2m": 2 * time.Minute,
		"7d": 7 * 24 * time.Hour, "0.5d": 12 * time.Hour} {
		var v secondsValue
		if err := v.Set(text); err != nil || v.duration() != want {
			t.Errorf("%q: %v, %v, want %v", text, v.duration(), err, want)
		}
	}
	for _, text := range []string{"", "d", "-1d", "1d2h", "NaN", "soon", "Infd"} {
		if new(secondsValue).Set(text) == nil {
			t.Errorf("%q: taken", text)
		}
	}
}
