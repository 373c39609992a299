"""Runs nginx with deploy/nginx.conf in front of a SuperLink on this computer. Nothing is installed or changed."""

from __future__ import annotations

import shutil
from pathlib import Path

from certificates import Certificates

SETTINGS = Path(__file__).resolve().parents[2] / "deploy" / "nginx.conf"
# Debian installs nginx where only root's PATH looks.
NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin:/opt/homebrew/bin")

# The rest of a configuration, as Debian's /etc/nginx/nginx.conf has it, with all files in one folder.
MAIN = """
user root;  # of the master and the workers alike; ignored for any other user
worker_processes 1;
daemon off;
pid {folder}/nginx.pid;
error_log stderr;
events {{ worker_connections 1024; }}
http {{
    access_log {folder}/access.log;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    include {folder}/cosdefense.conf;
}}
"""


def write_settings(folder: Path, address: str, superlink: str, certificates: Certificates) -> Path:
    """Write deploy/nginx.conf with other addresses and files, and a main file that includes it. Returns the latter."""
    text = SETTINGS.read_text(encoding="utf-8")
    changes = {
        "listen 443 ssl;": f"listen {address} ssl;",
        "server 127.0.0.1:8000;": f"server {superlink};",
        "/etc/cosdefense/server.crt": str(certificates.server),
        "/etc/cosdefense/server.key": str(certificates.server_key),
        "/etc/cosdefense/ca.crt": str(certificates.ca),
    }
    for old, new in changes.items():
        if text.count(old) != 1:
            raise ValueError(f"{SETTINGS} must contain {old!r} once, found {text.count(old)}")
        text = text.replace(old, new)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cosdefense.conf").write_text(text, encoding="utf-8")
    main = folder / "nginx.conf"
    main.write_text(MAIN.format(folder=folder), encoding="utf-8")
    return main
