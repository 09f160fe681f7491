"""The dashboard: recorded runs in the browser, on this machine or to a network by token.

`app.server.serve` opens runs and serves them; `create_app` there builds the application over them.
Downwards only: `app` (the server and the frame around pages), `export` (the report in one file, of
the pages' cards), `pages` (a question each), `components` (what pages share), `view` (from address
bar and mouse to what is shown), `figures` (pure: tables to Plotly) and `runs` (open runs). `ids`,
`text` and `theme` serve all.
"""
