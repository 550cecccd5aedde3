// Package browser lets tests look at a page as a person does: in a headless
// Chromium, driven over its DevTools pipe. For tests alone; one that finds no
// browser is skipped, and what it starts ends with the test.
package browser
