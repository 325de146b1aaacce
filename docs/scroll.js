// What can be scrolled can be scrolled by the keyboard too, and a button to copy code is no place to navigate to.
document$.subscribe(() =>
  setTimeout(() => {
    document.querySelectorAll(".md-typeset__scrollwrap").forEach((table) => (table.tabIndex = 0))
    document.querySelectorAll(".md-code__nav").forEach((buttons) => (buttons.role = "none"))
  }),
)
