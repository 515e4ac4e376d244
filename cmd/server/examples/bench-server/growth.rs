//! How the server grows: with sessions that are used, and with sessions that idle.

use anyhow::{Context, Result};
use cli_mcp_figures::{Figure, percentile};
use futures::StreamExt;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::json;

use crate::Bench;
use crate::cluster::{eventually, first, resident};

/// Real sessions at once, at which a warm call is measured.
const GROWTH: [usize; 4] = [1, 20, 100, 200];
/// Sandboxes that start at a time.
const STARTS_AT_ONCE: usize = 4;
/// Calls of each size of [`GROWTH`], over all its sessions in turn.
const GROWTH_CALLS: usize = 400;
const IDLE_SESSIONS: usize = 1000;

impl Bench {
    /// How a warm call and the server's memory grow with the sessions that live.
    pub(crate) async fn growth(&self, figures: &mut Vec<Figure>) -> Result<()> {
        let mut alive = 0;
        for sessions in GROWTH {
            let started: Vec<_> = futures::stream::iter(alive..sessions)
                .map(async |n| self.call(&format!("grown-{n}")).await)
                .buffer_unordered(STARTS_AT_ONCE)
                .collect()
                .await;
            started.into_iter().collect::<Result<Vec<_>>>()?;
            alive = sessions;
            let mut calls = Vec::new();
            for n in 0..GROWTH_CALLS {
                calls.push(self.call(&format!("grown-{}", n % sessions)).await?);
            }
            figures.extend([
                Figure::new(
                    format!("a warm call, in turn over {sessions} sessions, p50"),
                    percentile(&calls, 50),
                    "ms",
                ),
                Figure::new(
                    format!("resident memory of the server with {sessions} sessions"),
                    resident()?,
                    "MiB",
                ),
            ]);
        }
        self.end_sessions().await
    }

    pub(crate) async fn idle_sessions(&self, figures: &mut Vec<Figure>) -> Result<()> {
        let before = resident()?;
        let template = first(&self.pods, "cli-mcp.redhat.com/session-id=warm").await?;
        let made = futures::stream::iter(0..IDLE_SESSIONS).map(|n| {
            let mut pod = template.clone();
            pod.metadata = kube::core::ObjectMeta {
                name: Some(format!("idle-{n}")),
                labels: pod.metadata.labels.map(|mut labels| {
                    labels.insert("cli-mcp.redhat.com/session-id".to_owned(), format!("idle-{n}"));
                    labels
                }),
                annotations: template.metadata.annotations.clone(),
                owner_references: template.metadata.owner_references.clone(),
                ..kube::core::ObjectMeta::default()
            };
            if let Some(spec) = &mut pod.spec {
                // Nobody starts it: what is measured is the server.
                spec.scheduler_name = Some("none".to_owned());
                spec.node_name = None;
            }
            let pods = self.pods.clone();
            async move {
                let name = format!("idle-{n}");
                pods.create(&PostParams::default(), &pod).await?;
                pods.patch_status(
                    &name,
                    &PatchParams::default(),
                    &Patch::Merge(json!({"status": pod.status})),
                )
                .await?;
                Ok::<_, kube::Error>(())
            }
        });
        let made: Vec<_> = made.buffer_unordered(16).collect().await;
        made.into_iter().collect::<Result<Vec<_>, _>>()?;
        let expected = format!("cli_mcp_server_sessions {}\n", IDLE_SESSIONS + 1);
        eventually(async || Ok(self.metrics().await?.contains(&expected).then_some(())))
            .await
            .context("the server does not know of the idle sessions")?;
        figures.extend([
            Figure::new("resident memory of the server after the runs above", before, "MiB"),
            Figure::new("resident memory with 1,000 idle sessions", resident()?, "MiB").at_most(40.0),
        ]);
        Ok(())
    }
}
