"""How the report looks, by day and by night."""

from typing import Final

STYLE: Final = """
:root { color-scheme: light dark; --ink: #212529; --dim: #6c757d; --line: #ced4da; --paper: #fff; --box: #f8f9fa;
  --bad: #c92a2a; --warn: #b35c00; --good: #2b8a3e; }
@media (prefers-color-scheme: dark) { :root { --ink: #e9ecef; --dim: #adb5bd; --line: #495057; --paper: #16191c;
  --box: #212529; --bad: #ff8787; --warn: #ffc078; --good: #8ce99a; } }
body { font: 14px/1.45 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 75rem;
  margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; margin: 0; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; } p { margin: .3rem 0; }
.dim { color: var(--dim); } .wide { overflow-x: auto; } table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .25rem .75rem .25rem 0; border-bottom: 1px solid var(--line); }
td { font-family: ui-monospace, monospace; font-size: 12px; white-space: pre-wrap; }
pre { background: var(--box); padding: .75rem; overflow-x: auto; font-size: 12px; }
.error, .dead, .lost { color: var(--bad); } .warning { color: var(--warn); } .alive { color: var(--good); }
svg { width: 100%; height: auto; font-family: ui-monospace, monospace; }
svg text { fill: var(--ink); font-size: 11px; } svg .name { font-size: 13px; font-weight: 600; }
svg .dim { fill: var(--dim); } svg rect { stroke: var(--line); fill: var(--box); }
svg .numa { fill: none; stroke-dasharray: 4 3; } svg .nic { stroke: var(--own); stroke-width: 2; }
svg .free { fill: var(--paper); } svg .taken { fill: var(--own); stroke: var(--own); }
svg .dead { stroke: var(--bad); stroke-width: 2; } svg .line { fill: none; stroke-width: 1.5; opacity: .8; }
"""
