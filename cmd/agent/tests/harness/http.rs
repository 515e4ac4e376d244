//! HTTP/1.1 as the tests speak it: with heads, chunks and early ends in the open.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};

use cli_mcp_sandbox::wire::ExecResult;
use serde_json::Value;

use super::GENEROUS;

/// An HTTP answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HashMap<String, String>,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error}: {:?}", String::from_utf8_lossy(&self.body)))
    }

    pub(crate) fn error(&self) -> String {
        self.json()["error"].as_str().unwrap().to_owned()
    }

    pub(crate) fn result(&self) -> ExecResult {
        assert_eq!(self.status, 200, "{}", String::from_utf8_lossy(&self.body));
        serde_json::from_slice(&self.body).unwrap()
    }
}

pub(crate) fn connect(address: SocketAddr) -> BufReader<TcpStream> {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(GENEROUS * 4)).unwrap();
    stream.set_nodelay(true).unwrap();
    BufReader::new(stream)
}

pub(crate) fn send(stream: &mut TcpStream, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) {
    let mut head = format!(
        "{method} {path} HTTP/1.1\r\nHost: agent\r\nContent-Length: {}\r\n",
        body.len()
    );
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str("\r\n");
    // One write: a small request must not wait for an acknowledgement. A server that answers early may close.
    let _ = stream.write_all(&[head.as_bytes(), body].concat());
}

/// Reads the status line and headers of an answer.
pub(crate) fn receive_head(connection: &mut BufReader<TcpStream>) -> Option<Answer> {
    let mut line = String::new();
    if connection.read_line(&mut line).ok()? == 0 {
        return None;
    }
    let status = line.split(' ').nth(1)?.parse().ok()?;
    let mut headers = HashMap::new();
    loop {
        line.clear();
        connection.read_line(&mut line).ok()?;
        match line.trim_end().split_once(':') {
            Some((name, value)) => headers.insert(name.to_ascii_lowercase(), value.trim().to_owned()),
            None => break,
        };
    }
    Some(Answer {
        status,
        headers,
        body: Vec::new(),
    })
}

/// Reads a whole answer, chunked or not.
pub(crate) fn receive(connection: &mut BufReader<TcpStream>) -> Option<Answer> {
    let mut answer = receive_head(connection)?;
    if answer
        .headers
        .get("transfer-encoding")
        .is_some_and(|value| value == "chunked")
    {
        while let Some(chunk) = receive_chunk(connection) {
            answer.body.extend(chunk);
        }
    } else {
        let length = answer
            .headers
            .get("content-length")
            .map_or(0, |value| value.parse().unwrap());
        answer.body.resize(length, 0);
        connection.read_exact(&mut answer.body).ok()?;
    }
    Some(answer)
}

/// Reads one chunk; None at the end.
pub(crate) fn receive_chunk(connection: &mut BufReader<TcpStream>) -> Option<Vec<u8>> {
    let mut line = String::new();
    connection.read_line(&mut line).ok()?;
    let length = usize::from_str_radix(line.trim(), 16).ok()?;
    let mut chunk = vec![0; length + 2];
    connection.read_exact(&mut chunk).ok()?;
    chunk.truncate(length);
    (length > 0).then_some(chunk)
}
