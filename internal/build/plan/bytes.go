package plan

import (
	"reflect"
	"slices"
	"strings"
	"unicode/utf8"
)

// undistinguished calls found, in order, with the texts of a step that are not valid UTF-8. Their
// JSON may equal that of other texts, because JSON has U+FFFD for every invalid byte. Names of files
// may contain any bytes.
func undistinguished(step *Step, found func(string)) {
	text := func(s string) {
		if strings.ContainsRune(s, utf8.RuneError) { // invalid bytes count as this rune
			found(s)
		}
	}
	var walk func(v reflect.Value)
	walk = func(v reflect.Value) {
		switch v.Kind() {
		case reflect.String:
			text(v.String())
		case reflect.Pointer:
			if !v.IsNil() {
				walk(v.Elem())
			}
		case reflect.Struct:
			if src, ok := v.Interface().(Source); ok { // its files come first
				for i := range src.Files {
					text(src.Name(&src.Files[i]))
					text(src.Files[i].Link)
				}
				src.Files = nil
				v = reflect.ValueOf(src)
			}
			for i := range v.NumField() {
				walk(v.Field(i))
			}
		case reflect.Slice:
			for i := range v.Len() {
				walk(v.Index(i))
			}
		case reflect.Map: // of texts, in the order of JSON
			keys := v.MapKeys()
			slices.SortFunc(keys, func(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) })
			for _, k := range keys {
				walk(k)
				walk(v.MapIndex(k))
			}
		}
	}
	walk(reflect.ValueOf(step))
}
