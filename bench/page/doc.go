// Package page shows stored results of bench suites as one HTML page: charts, a
// table under each, the machine, and the commands that made them.
//
// The page is one file that needs nothing else: no script, no network, charts as
// inline SVG. All its numbers come from the rows it is given.
//
// A suite without an entry in suites.go has a bar chart for each of its results; an
// entry gives it better ones.
//
// # Charts
//
//   - Text is laid out here, for a font that may be wider than ours: charWidth is
//     what a character takes at most, and labels that would meet are left out.
//     Whatever has no place reserved for it goes into HTML: titles and legends.
//   - An implementation has one colour, dash and marker in all charts of a suite. Colours
//     are those of Okabe and Ito, darker or lighter where a background needs it;
//     KVCR is the thick vermilion line, limits of the machine are grey dashes.
//   - A value is the median of the runs; whiskers are the smallest and the largest.
package page
