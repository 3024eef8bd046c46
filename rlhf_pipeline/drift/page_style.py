"""How the day's page looks, light and dark. Knows class names; fetches no font and no picture."""

STYLE = """
:root {
  --paper: #ffffff; --card: #f6f7f9; --ink: #1b1f24; --muted: #57606a; --rule: #d8dee4;
  --link: #0a58ca;
  --ref: #6e7781; --now: #0b62c4; --band: #0b62c4; --ceiling: #1a7f37;
  --good: #116329; --good-on: #dafbe1; --warn: #7a4b00; --warn-on: #fff1c2; --bad: #a40e26;
  --bad-on: #ffe2e0; --none: #4a5159; --none-on: #e7eaee;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #0f1419; --card: #181f27; --ink: #e6edf3; --muted: #9da7b3; --rule: #313a45;
    --link: #79b8ff;
    --ref: #a3adb8; --now: #58a6ff; --band: #58a6ff; --ceiling: #56d364;
    --good: #7ee787; --good-on: #12351d; --warn: #f2cc60; --warn-on: #3b2e05; --bad: #ffa198;
    --bad-on: #4a1513; --none: #c0c8d1; --none-on: #2a323c;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body { margin: 0 auto; max-width: 74rem; padding: 1.5rem 1.25rem 3rem; background: var(--paper);
  color: var(--ink);
  font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", sans-serif; }
a { color: var(--link); }
:focus-visible { outline: 2px solid var(--link); outline-offset: 2px; }
.skip { position: absolute; left: -100rem; } .skip:focus { position: static; }
header { border-bottom: 1px solid var(--rule); margin-bottom: 1.5rem; padding-bottom: 1rem; }
.kicker { margin: 0; color: var(--muted); font-weight: 600; letter-spacing: .04em;
  text-transform: uppercase; font-size: .8rem; }
h1 { margin: .1rem 0 .4rem; font-size: 2rem; line-height: 1.2; font-variant-numeric: tabular-nums; }
h2 { margin: 0 0 .6rem; font-size: 1.35rem; line-height: 1.3; white-space: pre-wrap; }
p { margin: 0 0 .8rem; max-width: 62rem; }
.lead { font-size: 1.1rem; }
.note, footer { color: var(--muted); font-size: .9rem; }
dl { display: flex; flex-wrap: wrap; gap: .5rem 2rem; margin: 1rem 0 0; }
dt { color: var(--muted); font-size: .8rem; }
dd { margin: 0; font-weight: 600; overflow-wrap: anywhere; }
.badge { display: inline-block; padding: .05rem .55rem; border-radius: 1rem; font-size: .85rem;
  font-weight: 600; white-space: nowrap; vertical-align: middle; }
h1 .badge { font-size: 1.1rem; padding: .15rem .8rem; }
.badge.stable { color: var(--good); background: var(--good-on); }
.badge.warning { color: var(--warn); background: var(--warn-on); }
.badge.drift { color: var(--bad); background: var(--bad-on); }
.badge.insufficient { color: var(--none); background: var(--none-on); }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(14rem, 1fr)); gap: 1rem;
  margin: 0 0 2rem; padding: 0; list-style: none; }
.cards li { display: flex; flex-direction: column; align-items: flex-start; gap: .15rem;
  padding: .9rem 1rem; background: var(--card);
  border: 1px solid var(--rule); border-radius: .6rem; }
.cards strong { font-size: 1.6rem; line-height: 1.2; font-variant-numeric: tabular-nums; }
.cards span:not(.badge):not(.badge span) { color: var(--muted); }
section { margin: 0 0 2.5rem; padding-top: .5rem; }
.missing { padding: .7rem 1rem; border-left: 4px solid var(--none); background: var(--none-on);
  border-radius: .3rem; }
figure { margin: 0 0 1.2rem; } .scroll { overflow-x: auto; margin: 0 0 1.2rem; }
.picture { margin-bottom: .3rem; }
.picture svg { display: block; width: 100%; min-width: 48rem; height: auto; max-width: 60rem; }
.picture svg.narrow { max-width: 40rem; min-width: 26rem; }
.legend { display: flex; flex-wrap: wrap; gap: .2rem 1.4rem; margin: 0; padding: 0;
  list-style: none; color: var(--muted); font-size: .9rem; }
.legend li { display: flex; align-items: center; gap: .4rem; }
table { border-collapse: collapse; width: 100%; font-size: .92rem; }
caption { text-align: left; font-weight: 600; padding-bottom: .4rem; }
th, td { padding: .4rem .7rem; border-bottom: 1px solid var(--rule); text-align: left;
  vertical-align: top; }
thead th { color: var(--muted); font-weight: 600; font-size: .82rem; vertical-align: bottom; }
tbody th { font-weight: 600; min-width: 6rem; } td:last-child:not(.number) { min-width: 13rem; }
.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
thead .number { white-space: normal; }
.line { display: block; white-space: nowrap; } .line b { font-variant-numeric: tabular-nums; }
td small { display: block; color: var(--muted); white-space: nowrap; }
.examples { margin: 0; padding-left: 1.1rem; min-width: 18rem; overflow-wrap: anywhere; }
.examples small { white-space: normal; }
summary { cursor: pointer; color: var(--link); margin-bottom: .6rem; }
code { font-family: ui-monospace, "Liberation Mono", monospace; font-size: .9em;
  overflow-wrap: anywhere; }
svg text { fill: var(--muted); font-size: 13px; }
svg text.strong { fill: var(--ink); font-weight: 600; } svg text.small { font-size: 11.5px; }
.grid { stroke: var(--rule); stroke-width: 1; } .axis { stroke: var(--muted); }
.perfect { stroke: var(--muted); stroke-dasharray: 5 4; }
.band { fill: var(--band); opacity: .17; }
.curve { fill: none; stroke: var(--now); stroke-width: 2.2; stroke-linejoin: round; }
.ceiling-band { fill: var(--ceiling); opacity: .12; }
.ceiling { stroke: var(--ceiling); stroke-width: 1.5; stroke-dasharray: 6 4; }
.today { fill: var(--warn-on); opacity: .75; }
.fired { fill: var(--bad); } .warned { fill: none; stroke: var(--warn); stroke-width: 1.6; }
.since { stroke: var(--bad); stroke-width: 2; }
.whisker { stroke-width: 2; } .whisker.ref { stroke: var(--ref); }
.whisker.now { stroke: var(--now); } .whisker.changed { stroke: var(--bad); }
.dot.ref { fill: var(--paper); stroke: var(--ref); stroke-width: 2; }
.dot.now { fill: var(--now); stroke: var(--now); stroke-width: 2; }
.dot.changed { fill: var(--bad); stroke: var(--bad); }
.few { opacity: .45; } .dot.few { fill: var(--paper); } .bar.ref { fill: var(--ref); }
.bar.now { fill: var(--now); }
.key { width: 1.1rem; height: 1.1rem; flex: none; }
.key.ref circle { fill: var(--paper); stroke: var(--ref); stroke-width: 2; }
.key.now circle { fill: var(--now); } .key.changed circle { fill: var(--bad); }
.key .swatch { stroke: var(--rule); }
@media print {
  body { max-width: none; } .scroll { overflow: visible; } section { break-inside: avoid; }
}
"""
