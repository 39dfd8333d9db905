//! What an instance at rest asks its database for.

use tokio::time::sleep;

use crate::harness::{PATIENCE, Postgres, Setup};

const BEAT: &str = "UPDATE instances SET";

/// The statements in the log of the server between the first renewal of a lease and the one after `beats` more. Of
/// several in one text each counts.
async fn statements_in(server: &Postgres, beats: usize) -> usize {
    let begin = server.log().len();
    let began = tokio::time::Instant::now();
    loop {
        let log = server.log();
        let log = log.get(begin..).unwrap_or_default();
        let found: Vec<usize> = log.match_indices(BEAT).map(|(at, _)| at).collect();
        if let (Some(first), Some(last)) = (found.first(), found.get(beats)) {
            return statements(&log[*first..*last]);
        }
        assert!(began.elapsed() < PATIENCE, "no lease is renewed:\n{log}");
        sleep(std::time::Duration::from_millis(100)).await;
    }
}

fn statements(log: &str) -> usize {
    let mut count = 0;
    for line in log.split(" LOG:  ").skip(1) {
        // A line that tells what a statement was given begins with another word.
        let Some(text) = ["statement: ", "execute "]
            .iter()
            .find_map(|word| line.strip_prefix(word))
        else {
            continue;
        };
        let text = text.split(" DETAIL:").next().unwrap_or_default();
        count += text
            .split(';')
            .filter(|part| part.contains(|of: char| of.is_ascii_alphabetic()))
            .count();
    }
    count
}

/// With the intervals that it has by itself, one lease is renewed every ten thirds of a second.
fn at_rest(server: &Postgres) -> Setup {
    Setup::default().database_url(&format!("{}?sslmode=disable", server.url()))
}

/// Each statement is one of every instance, every second, for ever: it was 107 for each beat, and five of the seven
/// that a loop sends were around the one that asks something.
#[tokio::test]
async fn an_instance_at_rest_asks_little() {
    let server = Postgres::start_with("log_statement = 'all'\nlog_line_prefix = '%m '\n").await;
    let provost = at_rest(&server).start().await;
    provost.says("this instance is now the supervisor").await;
    let count = statements_in(&server, 3).await;
    assert!(count < 3 * 30, "{count} statements in three beats");
    assert!(count > 3 * 5, "{count}: they are not counted");
}
