#!/usr/bin/python3
"""shot URL FILE: loads a page in the running browser, prints its title, and writes a PNG."""

import sys

from playwright.sync_api import sync_playwright

if len(sys.argv) != 3:
    sys.exit("usage: shot URL FILE")
with sync_playwright() as playwright:
    browser = playwright.chromium.connect_over_cdp("http://127.0.0.1:9222", timeout=300_000)
    page = browser.contexts[0].new_page()
    page.set_default_timeout(300_000)
    page.goto(sys.argv[1])
    page.screenshot(path=sys.argv[2])
    print(page.title())
    page.close()
