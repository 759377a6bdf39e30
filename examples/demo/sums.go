package main

import "fmt"

// sum is an expression for numpy, and the right answer, which is computed without numpy.
type sum struct {
	code string
	want string // repr of the answer
}

// sumOf returns the i-th sum, i ≥ 0. All sums are different. Their answers are integers that a
// float64 represents exactly, so rounding does not matter.
func sumOf(i int) sum {
	k := int64(i/5 + 2)
	switch i % 5 {
	case 0: // Gauss: 1 + 2 + … + m = m(m+1)/2
		m := 1000 * k
		return sum{fmt.Sprintf("int(np.arange(1, %d).sum())", m+1), fmt.Sprint(m * (m + 1) / 2)}
	case 1: // 1² + 2² + … + m² = m(m+1)(2m+1)/6
		m := 100 * k
		return sum{fmt.Sprintf("int((np.arange(1, %d, dtype=np.int64) ** 2).sum())", m+1),
			fmt.Sprint(m * (m + 1) * (2*m + 1) / 6)}
	case 2: // powers of [[1 1] [1 0]] contain Fibonacci numbers
		e := k%88 + 2 // the first 92 Fibonacci numbers fit into an int64
		return sum{fmt.Sprintf("int(np.linalg.matrix_power(np.array([[1, 1], [1, 0]]), %d)[0, 1]) + %d", e, k),
			fmt.Sprint(fibonacci(e) + k)}
	case 3: // for k × k matrices filled with 2 and with 3, trace(a·b) is k · 6k
		return sum{fmt.Sprintf("int(np.trace(np.full((%d, %d), 2.0) @ np.full((%d, %d), 3.0)))", k, k, k, k),
			fmt.Sprint(6 * k * k)}
	}
	// A k × k matrix with 2 on the diagonal and -1 next to it has the determinant k + 1.
	return sum{fmt.Sprintf("round(float(np.linalg.det(2 * np.eye(%d) - np.eye(%d, k=1) - np.eye(%d, k=-1))))", k, k, k),
		fmt.Sprint(k + 1)}
}

// fibonacci returns the n-th number of the sequence 0, 1, 1, 2, 3, …
func fibonacci(n int64) int64 {
	a, b := int64(0), int64(1)
	for range n {
		a, b = b, a+b
	}
	return a
}
