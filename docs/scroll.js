// Tables that scroll can be scrolled by the keyboard too.
document$.subscribe(() =>
  setTimeout(() => document.querySelectorAll(".md-typeset__scrollwrap").forEach((table) => (table.tabIndex = 0))),
)
