"""One simulated day through the real jobs and sensors. Knows Dagster; the stages and the truth are
elsewhere.
"""

from datetime import UTC, date, datetime, time, timedelta
from typing import Any

import dagster as dg

from demo.in_process import InProcessRunner
from demo.recovery import fail_dead_runs, release_run_keys
from demo.state import DemoState
from rlhf_pipeline.artefacts import Artefacts

SENSORS = ("votes", "learning", "retraining")


class Loop(InProcessRunner):
    """Runs jobs in process and ticks sensors as the daemon would; how far it came survives in
    `settings.demo_state`.
    """

    to_go_on = "run the demo again"

    def run_day(self, day: str) -> None:
        """Collection, voting, then every sensor until none asks for more; of a day that was cut
        short, what is left of it.
        """
        # else a champion that learnt from the day would complete and predict it again
        if self.state.collected != day:
            self.run("collection", day, partition_key=day)
            self._save(collected=day)
        self.run(
            "simulated_voting",
            day,
            run_config={"ops": {"cast_simulated_votes": {"config": {"day": day}}}},
        )
        for sensor in SENSORS:
            self._drain(sensor, day)
            if sensor == "votes" and day not in Artefacts(self.settings.frames).days(
                "drift_report"
            ):
                # too few votes for the sensor, or another daemon was asked
                self.run("feedback", day, partition_key=day)
        self._save(finished=day)

    def resume(self) -> None:
        """End what a dead process left; retry what it left of finished days. A day that was cut
        short goes on in `run_day`.
        """
        fail_dead_runs(
            self.instance, self.store, timedelta(seconds=self.settings.dead_after_seconds)
        )
        release_run_keys(self.instance)
        last = self.state.finished
        if last is not None and last == self.state.collected:
            for sensor in SENSORS:
                self._drain(sensor, last)

    @property
    def state(self) -> DemoState:
        return DemoState.read(self.settings.demo_state)

    def _save(self, **changed: Any) -> None:
        self.state.model_copy(update=changed).write(self.settings.demo_state)

    def _drain(self, sensor: str, day: str) -> None:
        """Tick until nothing is asked for. The cursor moves after the runs: a process killed in
        between is asked again.
        """
        while True:
            data = self.tick(sensor, day)
            requests = list(data.run_requests or [])
            for request in requests:
                self.run(
                    request.job_name or self._job_of(sensor),
                    day,
                    **self.run_arguments(request, sensor),
                )
            if data.cursor is not None:
                self._save(cursors=self.state.cursors | {sensor: data.cursor})
            if not requests:
                return

    def tick(self, name: str, day: str) -> Any:
        """Evaluate one sensor on its cursor, as the daemon does: the runs it asks for and its next
        cursor.
        """
        sensor = self.defs.get_sensor_def(name)
        with dg.build_sensor_context(
            instance=self.instance,
            cursor=self.state.cursors.get(name),
            resources={"store": self.store, "now": lambda: tick_time(day)},
            repository_def=self.repository,
        ) as context:
            data = sensor.evaluate_tick(context)
        for event in data.asset_events:
            self.instance.report_runless_asset_event(event)
        return data

    def _job_of(self, sensor: str) -> str:
        return {"votes": "feedback", "learning": "learning", "retraining": "retraining"}[sensor]


def tick_time(day: str) -> datetime:
    """The moment a simulated day's sensors tick: cool-downs are counted in simulated days."""
    return datetime.combine(date.fromisoformat(day), time(23), UTC)
