package cachedir

import "testing"

func TestFromEnv(t *testing.T) {
	for _, c := range []struct {
		env  map[string]string
		want string // "" means an error
	}{
		{map[string]string{"FORKD_CACHE": "/c/./x", "XDG_CACHE_HOME": "/xdg", "HOME": "/h"}, "/c/x"},
		{map[string]string{"XDG_CACHE_HOME": "/xdg", "HOME": "/h"}, "/xdg/forkd"},
		{map[string]string{"XDG_CACHE_HOME": "rel", "HOME": "/h"}, "/h/.cache/forkd"},
		{map[string]string{"FORKD_CACHE": "rel", "HOME": "/h"}, ""},
		{map[string]string{}, ""},
	} {
		got, err := fromEnv(func(k string) string { return c.env[k] })
		if got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%v: got %q, %v; want %q", c.env, got, err, c.want)
		}
	}
}
