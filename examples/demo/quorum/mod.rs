//! Processes contend for one lock on five servers. Two servers are killed and restarted empty, and then two others are
//! killed, so that the majority needs those that came back. The judge knows nothing of the lock's own state.

mod look;
mod play;

use crate::judge::Absence;
use crate::report::{Case, Majority, report};
use crate::server::Server;
use crate::stage::{Scene, Stage};
use crate::worker::LOCK;
use crate::{Cast, Interrupts, Trouble, conclude, exit_code, new_prefix, say, shown, trouble};
use clap::Args;
use futures::future::join_all;
use play::Play;
use std::process::ExitCode;
use std::sync::Arc;

pub(crate) const SERVERS: usize = 5;
pub(crate) const MAJORITY: usize = SERVERS / 2 + 1;

/// Shows processes contending for one lock that five servers keep. Two servers are killed and restarted empty, a holder
/// is killed meanwhile, and in the end two other servers are killed.
///
/// Starts and stops five private servers, whatever REDIS_URL says.
#[derive(Args, Clone, Debug)]
pub(crate) struct QuorumOptions {
    #[command(flatten)]
    cast: Cast,
}

/// What became of the servers.
#[derive(Default)]
struct Absences {
    all: Vec<Absence>,
    /// How long after their restart the killed servers voted again, in ns.
    returned: Option<u64>,
}

pub(crate) async fn demonstrate(options: QuorumOptions) -> ExitCode {
    if let Some(why) = options.cast.refused() {
        return trouble(why);
    }
    let Ok(interrupts) = Interrupts::listen() else {
        return trouble("cannot listen for signals");
    };
    let mut servers = Vec::new();
    for started in join_all((0..SERVERS).map(|_| Server::start())).await {
        match started {
            Ok(server) => servers.push(server),
            // The others end with their handles.
            Err(error) => return trouble(&error),
        }
    }
    let (scene, prefix) = (Arc::new(Scene::default()), new_prefix());
    let urls = servers.iter().map(|server| server.url.clone()).collect();
    let mut stage = Stage::new(options.cast.clone(), urls, prefix.clone(), Arc::clone(&scene));
    let ended = interrupts
        .or(run(&options.cast, &mut servers, &prefix, &scene, &mut stage))
        .await;
    stage.clear().await;
    for server in &mut servers {
        server.stop().await;
    }
    exit_code(ended)
}

/// Returns whether all is well.
async fn run(
    cast: &Cast,
    servers: &mut [Server],
    prefix: &str,
    scene: &Arc<Scene>,
    stage: &mut Stage,
) -> Result<bool, Trouble> {
    cast.introduce(&format!(
        "{SERVERS} private servers, of which {MAJORITY} are a majority"
    ));
    say("the order is judged by who is seen at one place of a majority, all else by what the processes tell\n");
    let urls: Vec<_> = servers.iter().map(|server| server.url.clone()).collect();
    let looking = look::look(&urls, &format!("{prefix}.q"), LOCK, cast.lease, Arc::clone(scene));
    let looking = looking.map_err(|error| Trouble::Because(error.to_string()))?;
    let mut absences = Absences::default();
    let playing = Play {
        stage: &mut *stage,
        servers,
        absences: &mut absences,
    };
    let paint = cast.paint();
    let played = shown(playing.play(), tokio::spawn(looking), scene, paint).await;
    let case = Case {
        kills: &stage.kills,
        arrivals: None,
        majority: Some(Majority {
            servers: SERVERS,
            absences: &absences.all,
            returned: absences.returned,
        }),
        lease: cast.lease,
        halt: played.as_ref().err(),
    };
    let report = report(scene, &case, paint);
    conclude(&report, played, paint)
}
