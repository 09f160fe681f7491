"""The dashboard: one recorded run in the browser, on this machine only.

`server.serve` opens a trace and serves it; `app.create_app` builds the application over a `Store`.
`pages` hold what is asked, `figures` how it is drawn (pure), `components` what pages share.
"""
