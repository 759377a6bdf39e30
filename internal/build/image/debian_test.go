package image

import (
	"archive/tar"
	"slices"
	"strings"
	"testing"
)

const hostTargets = `Packages Debian bookworm bookworm main http://mirror.test/debian/
Packages Debian bookworm bookworm contrib http://mirror.test/debian/
Translations Debian bookworm bookworm main http://mirror.test/debian/
Packages Debian bookworm-updates bookworm-updates main http://mirror.test/debian/
Packages Debian bookworm-backports bookworm-backports main http://mirror.test/debian/
Packages Debian bookworm-security bookworm-security main http://mirror.test/security/
Packages Elsewhere nodistro nodistro main https://other.test/
garbage
`

func TestSourcesFollowTheHost(t *testing.T) {
	for _, c := range []struct {
		suite, targets string
		want           []string
	}{
		{"bookworm", hostTargets, []string{
			"deb http://mirror.test/debian/ bookworm main contrib",
			"deb http://mirror.test/debian/ bookworm-updates main",
			"deb http://mirror.test/security/ bookworm-security main",
		}},
		{"trixie", hostTargets, []string{
			"deb http://mirror.test/debian/ trixie main contrib",
			"deb http://mirror.test/debian/ trixie-updates main",
			"deb http://mirror.test/security/ trixie-security main",
		}},
		// The host has two suites: the requested suite is used as it is, and no lines are derived
		// from the other suite.
		{"trixie", hostTargets + "Packages Debian trixie trixie main http://new.test/debian/\n", []string{
			"deb http://new.test/debian/ trixie main",
		}},
		{"bookworm", "Packages Ubuntu noble noble main http://ubuntu.test/\n", nil},
	} {
		got, err := sourcesFor(c.suite, []byte(c.targets))
		if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%s:\n got %q, %v\nwant %q", c.suite, got, err, c.want)
		}
	}
	if _, err := sourcesFor("sid", []byte("Packages Debian sid sid main http://user:secret@mirror.test/\n")); err == nil ||
		strings.Contains(err.Error(), "secret") {
		t.Errorf("credentials in a mirror's address: %v", err)
	}
}

func TestToolEnvKeepsLittle(t *testing.T) {
	env := toolEnv([]string{"PATH=/bin", "http_proxy=p", "FORKD_TOKEN=secret", "APT_CONFIG=/evil", "LANG=tr_TR"})
	if !slices.Contains(env, "PATH=/bin:/usr/sbin:/sbin") || !slices.Contains(env, "http_proxy=p") ||
		!slices.Contains(env, "LC_ALL=C") {
		t.Errorf("missing from %q", env)
	}
	for _, kv := range env {
		if strings.HasPrefix(kv, "FORKD_") || strings.HasPrefix(kv, "APT_") || strings.HasPrefix(kv, "LANG") {
			t.Errorf("%q came through", kv)
		}
	}
}

// Everything that determines the file system must change the key, or a build would use a stale
// image after an edit. Nothing else may change the key, or an image would be built twice.
func TestCacheKeyCoversEverything(t *testing.T) {
	fresh := func() *Recipe {
		return &Recipe{Name: "n", Base: "debian:bookworm", Packages: []string{"a", "b"}, Env: map[string]string{"A": "1"},
			files: []overlayFile{{name: "t", typ: tar.TypeReg, mode: 0o644, data: []byte("d")}}, MemoryMiB: 512, VCPUs: 1,
			DiskMiB: 1024}
	}
	keys := map[string]string{cacheKey(fresh(), ""): "unchanged"}
	add := func(what, key string) {
		if old, ok := keys[key]; ok {
			t.Errorf("%s: same key as %s", what, old)
		}
		keys[key] = what
	}
	for what, change := range map[string]func(*Recipe){
		"base":               func(r *Recipe) { r.Base = "debian:trixie" },
		"package added":      func(r *Recipe) { r.Packages = append(r.Packages, "c") },
		"packages joined":    func(r *Recipe) { r.Packages = []string{"ab"} },
		"packages reordered": func(r *Recipe) { slices.Reverse(r.Packages) },
		"file content":       func(r *Recipe) { r.files[0].data = []byte("e") },
		"file target":        func(r *Recipe) { r.files[0].name = "u" },
		"file mode":          func(r *Recipe) { r.files[0].mode = 0o755 },
		"file type":          func(r *Recipe) { r.files[0].typ = tar.TypeDir },
		"link":               func(r *Recipe) { r.files[0].link = "x" },
		"disk":               func(r *Recipe) { r.DiskMiB = 2048 },
	} {
		r := fresh()
		change(r)
		add(what, cacheKey(r, ""))
	}
	add("base digest", cacheKey(fresh(), "sha256:1"))
	other := fresh()
	other.Name, other.Description, other.Env["A"] = "m", "x", "2"
	other.MemoryMiB, other.VCPUs = 256, 2
	other.Warmup = Warmup{Python: "x", Commands: []string{"y"}, TimeoutSecs: 1}
	if keys[cacheKey(other, "")] != "unchanged" {
		t.Error("the key covers what the file system does not depend on")
	}
	if !keyPattern.MatchString(cacheKey(fresh(), "")) {
		t.Errorf("key %q", cacheKey(fresh(), ""))
	}
}
