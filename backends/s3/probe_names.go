package s3

import (
	"context"
	"fmt"
	"net/http"
)

// spelling asks whether a name leads to the object p/q, although it is another one. What a store refuses leads nowhere.
func spelling(odd string) func(*prober, context.Context, string) (bool, string, error) {
	return func(p *prober, ctx context.Context, key string) (bool, string, error) {
		plain, other := key+"/p/q", key+"/"+odd
		if _, err := p.put(ctx, plain, older); err != nil {
			return false, "", err
		}
		head, err := p.do(ctx, http.MethodHead, other, "", nil)
		if err != nil {
			return false, "", err
		}
		if head.ok() {
			return false, fmt.Sprintf("%s leads to the object p/q.", odd), nil
		}
		r, err := p.do(ctx, http.MethodPut, other, "", []byte(newer))
		if err != nil {
			return false, "", err
		}
		got, _, err := p.content(ctx, plain)
		switch {
		case err != nil:
			return false, "", err
		case got != older:
			return false, fmt.Sprintf("A PUT of %s changed the object p/q.", odd), nil
		case !r.ok():
			return true, fmt.Sprintf("%s is a name that the store does not take (%s).", odd, r), nil
		}
		return true, fmt.Sprintf("%s and p/q are two objects.", odd), nil
	}
}
