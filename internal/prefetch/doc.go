// Package prefetch asks the processor to bring a line into its cache while
// other work goes on. It is a hint: it changes nothing and cannot fault.
package prefetch
