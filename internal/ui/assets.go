package ui

import (
	"embed"
	"net/http"
	"path"
)

//go:generate go run -C bundle . ..

// assets holds the files of the page. Package bundle makes them from the sources in page.
//
//go:embed assets
var assets embed.FS

// serveAsset serves a file of the page.
func serveAsset(w http.ResponseWriter, r *http.Request) {
	name := r.URL.Path
	if name == "/" {
		name = "/index.html"
	}
	content, err := assets.ReadFile(path.Join("assets", path.Clean(name)))
	if err != nil || r.Method != http.MethodGet {
		refuse(w, http.StatusNotFound, "not_found", "the view has no page "+name)
		return
	}
	// The table of package mime may have been changed by the host's files.
	kind := map[string]string{".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8",
		".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}[path.Ext(name)]
	if kind == "" {
		kind = "application/octet-stream"
	}
	w.Header().Set("Content-Type", kind)
	_, _ = w.Write(content)
}
