package ui

import (
	"cmp"
	"embed"
	"net/http"
	"path"
)

//go:generate go run -C bundle . ..

// assets holds the files of the page. Package bundle makes them from the sources in page.
//
//go:embed assets
var assets embed.FS

// contentTypes are the types of the page's files. The table of package mime may have been changed by
// the host's files.
var contentTypes = map[string]string{".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8",
	".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}

func readAsset(name string) ([]byte, error) {
	if name == "/" {
		name = "/index.html"
	}
	return assets.ReadFile(path.Join("assets", path.Clean(name)))
}

// isAsset reports whether a path names a file of the page.
func isAsset(name string) bool {
	_, err := readAsset(name)
	return err == nil
}

// serveAsset serves a file of the page.
func serveAsset(w http.ResponseWriter, name string) {
	content, err := readAsset(name)
	if err != nil { // isAsset has found the file
		w.WriteHeader(http.StatusNotFound)
		return
	}
	kind := cmp.Or(contentTypes[path.Ext(name)], "application/octet-stream")
	if name == "/" {
		kind = contentTypes[".html"]
	}
	w.Header().Set("Content-Type", kind)
	_, _ = w.Write(content) // fails only if the client has left
}
