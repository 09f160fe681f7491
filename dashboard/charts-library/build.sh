#!/bin/sh
# Makes the charts' library anew, of exactly the versions and hashes in package-lock.json.
set -eu
here=$(dirname "$0")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp "$here"/package.json "$here"/package-lock.json "$here"/bundle.js "$work"
cd "$work"
npm ci --ignore-scripts --no-audit --no-fund
npm run build
cd - >/dev/null
version=$(node -p "require('$work/node_modules/plotly.js/package.json').version")
{
  printf '/*! plotly.js v%s, bar, heatmap, icicle and scatter only: dashboard/charts-library\n' "$version"
  printf '* Copyright Plotly, Inc. All rights reserved. Licensed under the MIT license */\n'
  cat "$work/out/plotly.min.js"
} > "${1:-$here/../tracelens_dashboard/assets/early/plotly.min.js}"
