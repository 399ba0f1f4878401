//! The plainest proxy that monoio-http makes: its codec on both sides, one upstream connection for
//! each of its clients, nothing decided and nothing logged.

use std::io::Write;
use std::net::SocketAddr;

use anyhow::{Context, Result};
use monoio::io::sink::{Sink, SinkExt};
use monoio::io::stream::Stream;
use monoio::net::{TcpListener, TcpStream};
use monoio_http::h1::codec::decoder::FillPayload;
use monoio_http::h1::codec::{ClientCodec, ServerCodec};

/// Serve until the process ends. The bound address is the one line on stdout.
///
/// # Errors
/// When nothing can listen there, or there is no ring.
pub fn serve(listen: SocketAddr, upstream: SocketAddr) -> Result<()> {
    let mut runtime = monoio::RuntimeBuilder::<monoio::IoUringDriver>::new()
        .enable_timer()
        .build()
        .context("no ring")?;
    runtime.block_on(async {
        let listener = TcpListener::bind(listen).context("cannot listen")?;
        let mut out = std::io::stdout();
        writeln!(out, "{}", listener.local_addr()?).and_then(|()| out.flush())?;
        loop {
            let (client, _) = listener.accept().await.context("cannot accept")?;
            monoio::spawn(async move {
                // What breaks off is between the two.
                let _ = exchange(client, upstream).await;
            });
        }
    })
}

async fn exchange(client: TcpStream, upstream: SocketAddr) -> Result<()> {
    client.set_nodelay(true)?;
    let mut client = ServerCodec::new(client);
    let server = TcpStream::connect_addr(upstream).await?;
    server.set_nodelay(true)?;
    let mut server = ClientCodec::new(server);
    while let Some(request) = client.next().await {
        let (sent, filled) = monoio::join!(server.send_and_flush(request?), client.fill_payload());
        sent?;
        filled?;
        let response = server.next().await.context("the upstream closed")??;
        let (head, body) = response.into_parts();
        let response = http::Response::from_parts(head, body.with_io(&mut server));
        Sink::send(&mut client, response).await?;
        Sink::<http::Response<monoio_http::h1::payload::Payload>>::flush(&mut client).await?;
    }
    Ok(())
}
