//! nginx: one worker under its master.

use std::path::PathBuf;

use super::{INSTALL_HINT, Launch, Missing, Options, Peer, Site, on_path};

#[derive(Debug)]
pub(super) struct Nginx;

impl Peer for Nginx {
    fn name(&self) -> &'static str {
        "nginx"
    }

    fn find(&self, _: &Options) -> Result<PathBuf, Missing> {
        on_path("nginx", INSTALL_HINT)
    }

    fn version_arguments(&self) -> &'static [&'static str] {
        &["-v"]
    }

    fn launch(&self, site: &Site<'_>) -> Launch {
        Launch {
            arguments: vec![
                "-p".into(),
                site.folder.as_os_str().to_owned(),
                // Even its first words, before the configuration is read, go to this run's log.
                "-e".into(),
                site.path("error.log"),
                "-c".into(),
                site.path("nginx.conf"),
            ],
            files: vec![("nginx.conf", configuration(site))],
        }
    }
}

fn configuration(site: &Site<'_>) -> String {
    let guard = site.guard();
    let bound = guard.and_then(|guard| guard.servers);
    let timeouts = guard.map_or_else(String::new, |guard| {
        TIMEOUTS.replace("{PATIENCE}", &guard.patience.as_millis().to_string())
    });
    site.fill(CONFIGURATION)
        .replace("{MAX_CONNS}", &bound.map_or_else(String::new, |n| format!(" max_conns={n}")))
        .replace("{SHARED}", if bound.is_some() { "zone origin 64k;" } else { "" })
        .replace("{TIMEOUTS}", &timeouts)
        .replace("{LONG}", site.long(LONG))
        .replace("{HEAD}", &site.head_timeout("client_header_timeout {MS}ms;"))
        .replace("{GREEDY_UPSTREAM}", &site.shared(GREEDY_UPSTREAM))
        .replace("{GREEDY_LOCATION}", &site.shared(GREEDY_LOCATION))
        .replace(
            "{ZONE}",
            site.limit("limit_req_zone $http_x_api_key zone=bench:32m rate=1000000r/s;"),
        )
        .replace("{LIMIT}", site.limit("limit_req zone=bench burst=1000000 nodelay;"))
}

/// No longer than clients wait; the default is a minute.
const TIMEOUTS: &str = "proxy_connect_timeout {PATIENCE}ms;
            proxy_read_timeout {PATIENCE}ms;
            proxy_send_timeout {PATIENCE}ms;";

/// Larger pieces: with its defaults it takes three times as long.
const LONG: &str = "client_body_buffer_size 256k;
    proxy_buffer_size 64k;
    proxy_buffers 8 64k;
    proxy_busy_buffers_size 128k;";

const GREEDY_UPSTREAM: &str = "upstream greedy {
        server 127.0.0.1:{GREEDY_PORT} max_fails=0;
        keepalive 1024;
        keepalive_requests 1000000000;
    }
";

const GREEDY_LOCATION: &str = r#"location /greedy {
            proxy_pass http://greedy;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_set_header Host $host;
            proxy_set_header X-Request-Id $request_id;
            proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
            proxy_max_temp_file_size 0;
        }"#;

/// Buffers stay off the disk; connections live as long as the run; the pool holds whatever the
/// presets open.
const CONFIGURATION: &str = r#"daemon off;
worker_processes 1;
pid {FOLDER}/nginx.pid;
error_log {FOLDER}/error.log warn;

events {
    worker_connections 16384;
    multi_accept on;
}

http {
    client_body_temp_path {FOLDER}/body;
    proxy_temp_path {FOLDER}/proxy;
    fastcgi_temp_path {FOLDER}/fastcgi;
    uwsgi_temp_path {FOLDER}/uwsgi;
    scgi_temp_path {FOLDER}/scgi;

    split_clients $request_id $sampled {
        1% 1;
        *  0;
    }
    map $status $logged {
        ~^[45]  1;
        default $sampled;
    }
    log_format json escape=json
        '{"time":"$time_iso8601","request_id":"$request_id","client":"$remote_addr",'
        '"method":"$request_method","path":"$request_uri","status":$status,'
        '"bytes_out":$body_bytes_sent,"duration_s":$request_time,'
        '"upstream":"$upstream_addr","upstream_s":"$upstream_response_time",'
        '"user_agent":"$http_user_agent"}';
    access_log {FOLDER}/access.log json if=$logged;

    sendfile on;
    tcp_nodelay on;
    keepalive_timeout 90s;
    keepalive_requests 1000000000;
    client_max_body_size 0;
    {LONG}
    {HEAD}

    {ZONE}
    upstream origin {
        {SHARED}
        server 127.0.0.1:{ORIGIN_PORT} max_fails=0{MAX_CONNS};
        keepalive 1024;
        keepalive_requests 1000000000;
    }

    {GREEDY_UPSTREAM}
    server {
        listen 127.0.0.1:{PORT} backlog=4096;
        location / {
            {LIMIT}
            {TIMEOUTS}
            proxy_pass http://origin;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_set_header Host $host;
            proxy_set_header X-Request-Id $request_id;
            proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
            proxy_max_temp_file_size 0;
            proxy_request_buffering off;
        }
        {GREEDY_LOCATION}
    }
}
"#;
