-- The tables of version 0.1.0 and a few rows, as a store of that version has them. Never edited.
BEGIN TRANSACTION;
CREATE TABLE adjudications (
	adjudication_id INTEGER NOT NULL, 
	comparison_id VARCHAR NOT NULL, 
	choice VARCHAR, 
	reason TEXT NOT NULL, 
	at_seq INTEGER NOT NULL, 
	decided_by VARCHAR NOT NULL, 
	decided_at DATETIME NOT NULL, 
	CONSTRAINT pk_adjudications PRIMARY KEY (adjudication_id), 
	CONSTRAINT fk_adjudications_comparison_id_comparisons FOREIGN KEY(comparison_id) REFERENCES comparisons (comparison_id)
);
CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL PRIMARY KEY);
INSERT INTO "alembic_version" VALUES('0-6119e5780122');
CREATE TABLE alert_messages (
	message_id VARCHAR NOT NULL, 
	alert_id INTEGER, 
	target VARCHAR NOT NULL, 
	kind VARCHAR NOT NULL, 
	payload TEXT NOT NULL, 
	state VARCHAR NOT NULL, 
	n_attempts INTEGER NOT NULL, 
	created_at DATETIME NOT NULL, 
	next_attempt_at DATETIME NOT NULL, 
	delivered_at DATETIME, 
	last_error TEXT, 
	CONSTRAINT pk_alert_messages PRIMARY KEY (message_id), 
	CONSTRAINT ck_alert_messages_state CHECK (state IN ('pending', 'delivered', 'dead'))
);
CREATE TABLE alerts (
	alert_id INTEGER NOT NULL, 
	rule VARCHAR NOT NULL, 
	subject VARCHAR NOT NULL, 
	state VARCHAR NOT NULL, 
	opened_at DATETIME NOT NULL, 
	ended_at DATETIME, 
	record TEXT NOT NULL, 
	CONSTRAINT pk_alerts PRIMARY KEY (alert_id), 
	CONSTRAINT ck_alerts_state CHECK (state IN ('pending', 'open', 'acknowledged', 'resolved'))
);
CREATE TABLE annotation_rules (
	version INTEGER NOT NULL, 
	record TEXT NOT NULL, 
	created_at DATETIME NOT NULL, 
	created_by VARCHAR NOT NULL, 
	CONSTRAINT pk_annotation_rules PRIMARY KEY (version)
);
CREATE TABLE annotator_groups (
	annotator_id VARCHAR NOT NULL, 
	name VARCHAR NOT NULL, 
	CONSTRAINT pk_annotator_groups PRIMARY KEY (annotator_id)
);
CREATE TABLE audit (
	seq INTEGER NOT NULL, 
	at DATETIME NOT NULL, 
	actor VARCHAR NOT NULL, 
	action VARCHAR NOT NULL, 
	object_id VARCHAR NOT NULL, 
	payload_digest VARCHAR(64) NOT NULL, 
	prev_hash VARCHAR(64) NOT NULL, 
	hash VARCHAR(64) NOT NULL, 
	CONSTRAINT pk_audit PRIMARY KEY (seq)
);
INSERT INTO "audit" VALUES(1,'2026-01-01 12:00:00.000000','pipeline','comparisons.publish','3 comparisons','956f8b3144f8a029f3c20f605b2d9af614456dd724de1f1a97365e8b41189c41','0000000000000000000000000000000000000000000000000000000000000000','760654a0616ca43e3d9c79e3dcd4cff47102749d7846b700a72792257faec51c');
INSERT INTO "audit" VALUES(2,'2026-01-01 12:00:00.000000','pipeline','predictions.write','3 predictions','9444377b3e098cfc62afaf6df4b3c2590dbfc6016f21630bf4a8b118e9c8b46b','760654a0616ca43e3d9c79e3dcd4cff47102749d7846b700a72792257faec51c','41d3d9897268b76b4b49470c0045eaf47590adf142e49adf4997091d33a9cbf0');
INSERT INTO "audit" VALUES(3,'2026-01-01 12:01:00.000000','ann','vote.cast','30057fd5789ebeead021','41240bc7723ea8682722ecae61e2931c41c0390d528465e31e4add3635494f84','41d3d9897268b76b4b49470c0045eaf47590adf142e49adf4997091d33a9cbf0','2a7ae5f5704fe73f3a681c28e6050c48192908189b14ce49d560691cbbe3dab3');
INSERT INTO "audit" VALUES(4,'2026-01-01 12:02:00.000000','ann','vote.cast','7aca8df9c3d70594b05d','483edaca04ff407b9a644e0e43c2cd55d582e70967e71d0a12267162fc9fb927','2a7ae5f5704fe73f3a681c28e6050c48192908189b14ce49d560691cbbe3dab3','3a927f35b28d28d1127351d443d66a48132f1240cdefbf34585ca0a1dc154142');
INSERT INTO "audit" VALUES(5,'2026-01-01 12:02:00.000000','bob','vote.cast','2f21bd26895571aee13c','59819ccd5598b09186cef2559a219276d84a0d7487b2bdcd6e72589c315a7abe','3a927f35b28d28d1127351d443d66a48132f1240cdefbf34585ca0a1dc154142','8c8d618a5f0066879d505377d127780c1ce60e990620072ea474a28cc6f12b71');
INSERT INTO "audit" VALUES(6,'2026-01-01 12:02:00.000000','root','users.add','u5c8205fd4bdec108','24f9a004472d9721f7843f9acb89466e7978da55bf5e148f177ec6465ef17d4a','8c8d618a5f0066879d505377d127780c1ce60e990620072ea474a28cc6f12b71','af905ef993354f4a256d2116e2f2ba49bd88248e503f3226d0ac51f01d1ea155');
INSERT INTO "audit" VALUES(7,'2026-01-01 12:02:00.000000','root','roles.grant','u5c8205fd4bdec108','390f9487bbccd862e067f91050796dc9c05844263f2bc28eb64e4466f5c2e08d','af905ef993354f4a256d2116e2f2ba49bd88248e503f3226d0ac51f01d1ea155','ade6c6583a0ae0d611984454dd6ad194a5dbf91e35b71fa5309eb3fd17686777');
INSERT INTO "audit" VALUES(8,'2026-01-01 12:02:00.000000','ann','guidelines.add','1','e5bc6aa1bd9d866fac3119e7e1ec273426f9e48897e1b8866f69ac8beb976be4','ade6c6583a0ae0d611984454dd6ad194a5dbf91e35b71fa5309eb3fd17686777','31268a6b757cb2dc86a3e97618cd6da54e4a9d116aedb41d652f8313cfa596ed');
CREATE TABLE calibrations (
	reward_model VARCHAR NOT NULL, 
	version INTEGER NOT NULL, 
	fitted_at DATETIME NOT NULL, 
	report TEXT NOT NULL, 
	calibrator TEXT NOT NULL, 
	CONSTRAINT pk_calibrations PRIMARY KEY (reward_model, version)
);
CREATE TABLE cards (
	card_id VARCHAR NOT NULL, 
	comparison_id VARCHAR NOT NULL, 
	annotator_id VARCHAR NOT NULL, 
	pass_no INTEGER NOT NULL, 
	kind VARCHAR NOT NULL, 
	is_swapped BOOLEAN NOT NULL, 
	n INTEGER NOT NULL, 
	state VARCHAR NOT NULL, 
	offered_to VARCHAR, 
	leased_at DATETIME NOT NULL, 
	leased_until DATETIME NOT NULL, 
	settled_at DATETIME, 
	CONSTRAINT pk_cards PRIMARY KEY (card_id), 
	CONSTRAINT ck_cards_kind CHECK (kind IN ('normal', 'repeat', 'gold')), 
	CONSTRAINT ck_cards_state CHECK (state IN ('leased', 'voted', 'skipped', 'released')), 
	CONSTRAINT uq_cards_turn UNIQUE (comparison_id, annotator_id, pass_no), 
	CONSTRAINT fk_cards_comparison_id_comparisons FOREIGN KEY(comparison_id) REFERENCES comparisons (comparison_id)
);
CREATE TABLE chain_heads (
	chain_head_id INTEGER NOT NULL CONSTRAINT ck_chain_heads_only_row CHECK (chain_head_id = 1), 
	vote_seq INTEGER NOT NULL, 
	audit_seq INTEGER NOT NULL, 
	audit_hash VARCHAR(64) NOT NULL, 
	CONSTRAINT pk_chain_heads PRIMARY KEY (chain_head_id)
);
INSERT INTO "chain_heads" VALUES(1,3,8,'31268a6b757cb2dc86a3e97618cd6da54e4a9d116aedb41d652f8313cfa596ed');
CREATE TABLE comparisons (
	comparison_id VARCHAR NOT NULL, 
	day VARCHAR(10) NOT NULL, 
	prompt_id VARCHAR NOT NULL, 
	prompt TEXT NOT NULL, 
	completion_a_id VARCHAR NOT NULL, 
	completion_b_id VARCHAR NOT NULL, 
	completion_a TEXT NOT NULL, 
	completion_b TEXT NOT NULL, 
	model_version_a VARCHAR NOT NULL, 
	model_version_b VARCHAR NOT NULL, 
	category VARCHAR NOT NULL, 
	repeat_of VARCHAR, 
	position INTEGER NOT NULL, 
	seed INTEGER NOT NULL, 
	published_at DATETIME NOT NULL, 
	source VARCHAR, 
	source_pair_id VARCHAR, 
	split_group VARCHAR, 
	split VARCHAR, 
	gold VARCHAR, 
	flag VARCHAR, 
	pair_key VARCHAR, 
	written_by VARCHAR, 
	CONSTRAINT pk_comparisons PRIMARY KEY (comparison_id)
);
INSERT INTO "comparisons" VALUES('c0','2026-01-01','p0','prompt 0','x0','y0','text x','text y — ü','demo.policy@1','demo.policy@1','factual',NULL,0,7,'2026-01-01 12:00:00.000000',NULL,NULL,NULL,NULL,NULL,NULL,'f0a2612108cfef72e275',NULL);
INSERT INTO "comparisons" VALUES('c1','2026-01-01','p1','prompt 1','x1','y1','text x','text y — ü','demo.policy@1','demo.policy@1','factual',NULL,1,7,'2026-01-01 12:00:00.000000',NULL,NULL,NULL,NULL,NULL,NULL,'edd849cc647b0dd2d3cc',NULL);
INSERT INTO "comparisons" VALUES('c2','2026-01-01','p2','prompt 2','x2','y2','text x','text y — ü','demo.policy@1','demo.policy@1','factual',NULL,2,7,'2026-01-01 12:00:00.000000',NULL,NULL,NULL,NULL,NULL,NULL,'d41c59650129648a2187',NULL);
CREATE TABLE completion_cache (
	cache_key VARCHAR NOT NULL, 
	value TEXT NOT NULL, 
	used_at DATETIME NOT NULL, 
	CONSTRAINT pk_completion_cache PRIMARY KEY (cache_key)
);
CREATE TABLE decisions (
	decision_id INTEGER NOT NULL, 
	action VARCHAR NOT NULL, 
	state VARCHAR NOT NULL, 
	attempt INTEGER NOT NULL, 
	run_id VARCHAR, 
	leased_until DATETIME, 
	max_seq INTEGER NOT NULL, 
	decided_at DATETIME NOT NULL, 
	actor VARCHAR, 
	remedy VARCHAR, 
	answers INTEGER, 
	error TEXT, 
	record TEXT NOT NULL, 
	CONSTRAINT pk_decisions PRIMARY KEY (decision_id), 
	CONSTRAINT ck_decisions_state CHECK (state IN ('held', 'pending', 'submitted', 'succeeded', 'failed'))
);
CREATE TABLE detector_states (
	model_version VARCHAR NOT NULL, 
	stream VARCHAR NOT NULL, 
	detector VARCHAR NOT NULL, 
	last_seq INTEGER NOT NULL, 
	state TEXT NOT NULL, 
	saved_at DATETIME NOT NULL, 
	CONSTRAINT pk_detector_states PRIMARY KEY (model_version, stream, detector)
);
CREATE TABLE drift_events (
	event_id VARCHAR NOT NULL, 
	kind VARCHAR NOT NULL, 
	model_version VARCHAR NOT NULL, 
	detector VARCHAR NOT NULL, 
	params_hash VARCHAR NOT NULL, 
	stream VARCHAR NOT NULL, 
	seq INTEGER NOT NULL, 
	day VARCHAR(10) NOT NULL, 
	detected_at DATETIME NOT NULL, 
	record TEXT NOT NULL, 
	decision_id INTEGER, 
	is_replayed BOOLEAN, 
	CONSTRAINT pk_drift_events PRIMARY KEY (event_id), 
	CONSTRAINT uq_drift_events_detection UNIQUE (model_version, detector, params_hash, stream, seq), 
	CONSTRAINT fk_drift_events_decision_id_decisions FOREIGN KEY(decision_id) REFERENCES decisions (decision_id)
);
INSERT INTO "drift_events" VALUES('7ad9a9ead4a7f4e464c7','drift','demo.reward_model@1','ddm','ph','errors',2,'2026-01-01','2026-01-01 12:00:00.000000','{"change_seq":null,"day":"2026-01-01","detected_at":"2026-01-01T12:00:00+00:00","detector":"ddm","evidence":{"rate":0.4},"is_replayed":false,"kind":"drift","model_version":"demo.reward_model@1","params_hash":"ph","seq":2,"stream":"errors"}',NULL,NULL);
CREATE TABLE evaluation_sets (
	version INTEGER NOT NULL, 
	origin TEXT NOT NULL, 
	prompts_hash VARCHAR NOT NULL, 
	n_prompts INTEGER NOT NULL, 
	prompts TEXT NOT NULL, 
	created_at DATETIME NOT NULL, 
	CONSTRAINT pk_evaluation_sets PRIMARY KEY (version)
);
CREATE TABLE failed_logins (
	subject_hash VARCHAR NOT NULL, 
	n_failed INTEGER NOT NULL, 
	last_failed_at DATETIME NOT NULL, 
	CONSTRAINT pk_failed_logins PRIMARY KEY (subject_hash)
);
CREATE TABLE feedback (
	feedback_id INTEGER NOT NULL, 
	kind VARCHAR NOT NULL, 
	session_id VARCHAR, 
	created_by VARCHAR NOT NULL, 
	created_at DATETIME NOT NULL, 
	record TEXT NOT NULL, 
	comparison_id VARCHAR, 
	vote_id VARCHAR, 
	idempotency_key VARCHAR, 
	CONSTRAINT pk_feedback PRIMARY KEY (feedback_id), 
	CONSTRAINT uq_feedback_idempotency_key UNIQUE (idempotency_key), 
	CONSTRAINT ck_feedback_kind CHECK (kind IN ('thumbs', 'rating', 'correction', 'detailed'))
);
CREATE TABLE gates (
	gate_id INTEGER NOT NULL, 
	candidate VARCHAR NOT NULL, 
	decided_at DATETIME NOT NULL, 
	record TEXT NOT NULL, 
	CONSTRAINT pk_gates PRIMARY KEY (gate_id)
);
CREATE TABLE generation_attempts (
	run_id VARCHAR NOT NULL, 
	item_no INTEGER NOT NULL, 
	attempt_no INTEGER NOT NULL, 
	provider VARCHAR NOT NULL, 
	model VARCHAR NOT NULL, 
	started_at DATETIME NOT NULL, 
	latency_ms FLOAT NOT NULL, 
	outcome VARCHAR NOT NULL, 
	kind VARCHAR NOT NULL, 
	status INTEGER, 
	n_prompt_tokens INTEGER NOT NULL, 
	n_tokens INTEGER NOT NULL, 
	cost INTEGER NOT NULL, 
	billing VARCHAR NOT NULL, 
	wait_s FLOAT, 
	error TEXT, 
	partial TEXT, 
	CONSTRAINT pk_generation_attempts PRIMARY KEY (run_id, item_no, attempt_no), 
	CONSTRAINT ck_generation_attempts_outcome CHECK (outcome IN ('succeeded', 'retryable', 'terminal', 'lost')), 
	CONSTRAINT ck_generation_attempts_billing CHECK (billing IN ('metered', 'none', 'unknown')), 
	CONSTRAINT fk_generation_attempts_run_id_generation_runs FOREIGN KEY(run_id) REFERENCES generation_runs (run_id)
);
CREATE TABLE generation_batches (
	submission_id VARCHAR NOT NULL, 
	run_id VARCHAR NOT NULL, 
	submitted_at DATETIME NOT NULL, 
	batch_id VARCHAR, 
	CONSTRAINT pk_generation_batches PRIMARY KEY (submission_id), 
	CONSTRAINT fk_generation_batches_run_id_generation_runs FOREIGN KEY(run_id) REFERENCES generation_runs (run_id)
);
CREATE TABLE generation_items (
	run_id VARCHAR NOT NULL, 
	item_no INTEGER NOT NULL, 
	position INTEGER NOT NULL, 
	prompt_id VARCHAR NOT NULL, 
	provider VARCHAR NOT NULL, 
	model VARCHAR NOT NULL, 
	sample_index INTEGER NOT NULL, 
	params TEXT NOT NULL, 
	cache_key VARCHAR NOT NULL, 
	state VARCHAR NOT NULL, 
	owner VARCHAR, 
	leased_until DATETIME, 
	not_before DATETIME, 
	reserved INTEGER NOT NULL, 
	is_metered BOOLEAN NOT NULL, 
	is_cached BOOLEAN NOT NULL, 
	n_attempts INTEGER NOT NULL, 
	n_faults INTEGER NOT NULL, 
	kind VARCHAR, 
	error TEXT, 
	settled_at DATETIME, 
	CONSTRAINT pk_generation_items PRIMARY KEY (run_id, item_no), 
	CONSTRAINT ck_generation_items_state CHECK (state IN ('open', 'leased', 'succeeded', 'failed')), 
	CONSTRAINT fk_generation_items_run_id_generation_runs FOREIGN KEY(run_id) REFERENCES generation_runs (run_id)
);
CREATE TABLE generation_runs (
	run_id VARCHAR NOT NULL, 
	asset VARCHAR NOT NULL, 
	n_items INTEGER NOT NULL, 
	record TEXT NOT NULL, 
	origin VARCHAR, 
	started_at DATETIME NOT NULL, 
	ended_at DATETIME, 
	paused_until DATETIME, 
	pause_reason TEXT, 
	CONSTRAINT pk_generation_runs PRIMARY KEY (run_id)
);
CREATE TABLE generation_spending (
	run_id VARCHAR NOT NULL, 
	day VARCHAR(10) NOT NULL, 
	provider VARCHAR NOT NULL, 
	model VARCHAR NOT NULL, 
	asset VARCHAR NOT NULL, 
	n_calls INTEGER NOT NULL, 
	n_unknown INTEGER NOT NULL, 
	n_prompt_tokens INTEGER NOT NULL, 
	n_tokens INTEGER NOT NULL, 
	cost INTEGER NOT NULL, 
	cost_unknown INTEGER NOT NULL, 
	CONSTRAINT pk_generation_spending PRIMARY KEY (run_id, day, provider, model), 
	CONSTRAINT fk_generation_spending_run_id_generation_runs FOREIGN KEY(run_id) REFERENCES generation_runs (run_id)
);
CREATE TABLE guidelines (
	version INTEGER NOT NULL, 
	text TEXT NOT NULL, 
	created_at DATETIME NOT NULL, 
	created_by VARCHAR NOT NULL, 
	CONSTRAINT pk_guidelines PRIMARY KEY (version)
);
INSERT INTO "guidelines" VALUES(1,'Prefer what is true.','2026-01-01 12:02:00.000000','ann');
CREATE TABLE heartbeats (
	run_id VARCHAR NOT NULL, 
	pid INTEGER NOT NULL, 
	host VARCHAR NOT NULL, 
	job VARCHAR NOT NULL, 
	started_at DATETIME NOT NULL, 
	at DATETIME NOT NULL, 
	CONSTRAINT pk_heartbeats PRIMARY KEY (run_id)
);
CREATE TABLE imports (
	import_id INTEGER NOT NULL, 
	kind VARCHAR NOT NULL, 
	file TEXT NOT NULL, 
	state VARCHAR NOT NULL, 
	started_at DATETIME NOT NULL, 
	finished_at DATETIME, 
	record TEXT NOT NULL, 
	CONSTRAINT pk_imports PRIMARY KEY (import_id), 
	CONSTRAINT ck_imports_state CHECK (state IN ('started', 'finished', 'failed'))
);
CREATE TABLE metric_points (
	day VARCHAR(10) NOT NULL, 
	name VARCHAR NOT NULL, 
	labels TEXT NOT NULL, 
	n INTEGER NOT NULL, 
	total FLOAT, 
	total_squares FLOAT, 
	value FLOAT, 
	low FLOAT, 
	high FLOAT, 
	measured_at DATETIME NOT NULL, 
	CONSTRAINT pk_metric_points PRIMARY KEY (day, name, labels)
);
CREATE TABLE offers (
	comparison_id VARCHAR NOT NULL, 
	offered_to VARCHAR NOT NULL, 
	reserved_for VARCHAR NOT NULL, 
	priority INTEGER NOT NULL, 
	n_wanted INTEGER NOT NULL, 
	n_done INTEGER NOT NULL, 
	offered_at DATETIME NOT NULL, 
	CONSTRAINT pk_offers PRIMARY KEY (comparison_id, offered_to), 
	CONSTRAINT ck_offers_places CHECK (n_done BETWEEN 0 AND n_wanted), 
	CONSTRAINT fk_offers_comparison_id_comparisons FOREIGN KEY(comparison_id) REFERENCES comparisons (comparison_id)
);
CREATE TABLE predictions (
	comparison_id VARCHAR NOT NULL, 
	reward_model VARCHAR NOT NULL, 
	day VARCHAR(10) NOT NULL, 
	calibrator VARCHAR NOT NULL, 
	data_hash VARCHAR NOT NULL, 
	features_hash VARCHAR NOT NULL, 
	score_a FLOAT NOT NULL, 
	score_b FLOAT NOT NULL, 
	p_raw FLOAT NOT NULL, 
	p_calibrated FLOAT NOT NULL, 
	predicted_at DATETIME NOT NULL, 
	is_replayed BOOLEAN, 
	link_seq BIGINT NOT NULL, 
	CONSTRAINT pk_predictions PRIMARY KEY (comparison_id, reward_model), 
	CONSTRAINT ck_predictions_probabilities CHECK (p_raw BETWEEN 0 AND 1 AND p_calibrated BETWEEN 0 AND 1), 
	CONSTRAINT fk_predictions_comparison_id_comparisons FOREIGN KEY(comparison_id) REFERENCES comparisons (comparison_id)
);
INSERT INTO "predictions" VALUES('c0','demo.reward_model@1','2026-01-01','1','d','f',1.0,0.5,0.8,0.7,'2026-01-01 12:00:00.000000',NULL,2);
INSERT INTO "predictions" VALUES('c1','demo.reward_model@1','2026-01-01','1','d','f',1.0,0.5,0.8,0.7,'2026-01-01 12:00:00.000000',NULL,2);
INSERT INTO "predictions" VALUES('c2','demo.reward_model@1','2026-01-01','1','d','f',1.0,0.5,0.8,0.7,'2026-01-01 12:00:00.000000',NULL,2);
CREATE TABLE promotions (
	promotion_id INTEGER NOT NULL, 
	model_name VARCHAR NOT NULL, 
	version INTEGER NOT NULL, 
	promoted_at DATETIME NOT NULL, 
	record TEXT NOT NULL, 
	CONSTRAINT pk_promotions PRIMARY KEY (promotion_id)
);
CREATE TABLE replays (
	day VARCHAR(10) NOT NULL, 
	state VARCHAR NOT NULL, 
	asked_at DATETIME NOT NULL, 
	done_at DATETIME, 
	CONSTRAINT pk_replays PRIMARY KEY (day), 
	CONSTRAINT ck_replays_state CHECK (state IN ('pending', 'done'))
);
CREATE TABLE role_grants (
	user_id VARCHAR NOT NULL, 
	role VARCHAR NOT NULL, 
	granted_at DATETIME NOT NULL, 
	granted_by VARCHAR NOT NULL, 
	CONSTRAINT pk_role_grants PRIMARY KEY (user_id, role), 
	CONSTRAINT fk_role_grants_user_id_users FOREIGN KEY(user_id) REFERENCES users (user_id)
);
INSERT INTO "role_grants" VALUES('u5c8205fd4bdec108','annotator','2026-01-01 12:02:00.000000','root');
ANALYZE "sqlite_master";
INSERT INTO "sqlite_stat1" VALUES('cards','ix_cards_annotator','1000000 3000 1');
INSERT INTO "sqlite_stat1" VALUES('cards','ix_cards_state','1000000 3000 50 1');
INSERT INTO "sqlite_stat1" VALUES('offers','ix_offers_to_do','1000000 300000 100000 1');
INSERT INTO "sqlite_stat1" VALUES('comparisons','ix_comparisons_category','1000000 100000 1000 1 1');
INSERT INTO "sqlite_stat1" VALUES('comparisons','ix_comparisons_source','1000000 100000 1000 1 1');
INSERT INTO "sqlite_stat1" VALUES('comparisons','ix_comparisons_flag','10000 3000 30 1 1');
CREATE TABLE taste_changes (
	change_id INTEGER NOT NULL, 
	change_seq INTEGER NOT NULL, 
	category VARCHAR, 
	cause TEXT NOT NULL, 
	decision_id INTEGER, 
	actor VARCHAR NOT NULL, 
	recorded_at DATETIME NOT NULL, 
	retracted_at DATETIME, 
	retracted_by VARCHAR, 
	retraction_reason TEXT, 
	CONSTRAINT pk_taste_changes PRIMARY KEY (change_id), 
	CONSTRAINT fk_taste_changes_decision_id_decisions FOREIGN KEY(decision_id) REFERENCES decisions (decision_id)
);
CREATE TABLE tokens (
	token_hash VARCHAR(64) NOT NULL, 
	user_id VARCHAR NOT NULL, 
	kind VARCHAR NOT NULL, 
	name TEXT, 
	scopes TEXT, 
	created_at DATETIME NOT NULL, 
	expires_at DATETIME NOT NULL, 
	last_used_at DATETIME, 
	revoked_at DATETIME, 
	CONSTRAINT pk_tokens PRIMARY KEY (token_hash), 
	CONSTRAINT ck_tokens_kind CHECK (kind IN ('api', 'session', 'login')), 
	CONSTRAINT fk_tokens_user_id_users FOREIGN KEY(user_id) REFERENCES users (user_id)
);
CREATE TABLE users (
	user_id VARCHAR NOT NULL, 
	email VARCHAR NOT NULL, 
	name TEXT NOT NULL, 
	kind VARCHAR NOT NULL, 
	password_hash TEXT, 
	created_at DATETIME NOT NULL, 
	disabled_at DATETIME, 
	paused_at DATETIME, 
	CONSTRAINT pk_users PRIMARY KEY (user_id), 
	CONSTRAINT ck_users_kind CHECK (kind IN ('person', 'service')), 
	CONSTRAINT uq_users_email UNIQUE (email)
);
INSERT INTO "users" VALUES('u5c8205fd4bdec108','ann@example.org','Ann','person',NULL,'2026-01-01 12:02:00.000000',NULL,NULL);
CREATE TABLE votes (
	seq INTEGER NOT NULL, 
	vote_id VARCHAR NOT NULL, 
	comparison_id VARCHAR NOT NULL, 
	annotator_id VARCHAR NOT NULL, 
	annotator_kind VARCHAR NOT NULL, 
	choice VARCHAR NOT NULL, 
	strength INTEGER, 
	reason TEXT, 
	stated_confidence FLOAT, 
	duration_s FLOAT, 
	voted_at DATETIME, 
	day VARCHAR(10) NOT NULL, 
	received_at DATETIME NOT NULL, 
	origin VARCHAR NOT NULL, 
	idempotency_key VARCHAR NOT NULL, 
	supersedes VARCHAR, 
	pass_no INTEGER NOT NULL, 
	revision_no INTEGER NOT NULL, 
	displaced_day VARCHAR(10), 
	task_id VARCHAR, 
	card_id VARCHAR, 
	is_swapped BOOLEAN, 
	guideline_version INTEGER, 
	is_blind BOOLEAN, 
	details TEXT, 
	CONSTRAINT pk_votes PRIMARY KEY (seq), 
	CONSTRAINT ck_votes_choice CHECK (choice IN ('a', 'b', 'tie', 'both_bad', 'skip')), 
	CONSTRAINT ck_votes_strength CHECK (strength IS NULL OR (choice IN ('a', 'b') AND strength BETWEEN 1 AND 4)), 
	CONSTRAINT uq_votes_vote_id UNIQUE (vote_id), 
	CONSTRAINT uq_votes_idempotency_key UNIQUE (idempotency_key), 
	CONSTRAINT uq_votes_turn UNIQUE (comparison_id, annotator_id, pass_no, revision_no), 
	CONSTRAINT uq_votes_supersedes UNIQUE (supersedes), 
	CONSTRAINT fk_votes_comparison_id_comparisons FOREIGN KEY(comparison_id) REFERENCES comparisons (comparison_id)
);
INSERT INTO "votes" VALUES(1,'30057fd5789ebeead021','c0','ann','simulated','a',NULL,NULL,NULL,NULL,'2026-01-01 12:01:00.000000','2026-01-01','2026-01-01 12:01:00.000000','simulation','c0/ann',NULL,1,0,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "votes" VALUES(2,'7aca8df9c3d70594b05d','c0','ann','simulated','b',2,'shorter — ü',NULL,NULL,'2026-01-01 12:01:00.000000','2026-01-01','2026-01-01 12:02:00.000000','simulation','second','30057fd5789ebeead021',1,1,'2026-01-01',NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "votes" VALUES(3,'2f21bd26895571aee13c','c1','bob','simulated','tie',NULL,NULL,NULL,NULL,'2026-01-01 12:01:00.000000','2026-01-01','2026-01-01 12:02:00.000000','simulation','c1/bob',NULL,1,0,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
CREATE INDEX ix_comparisons_day ON comparisons (day, position, comparison_id);
CREATE INDEX ix_comparisons_flag ON comparisons (flag, day, position, comparison_id) WHERE flag IS NOT NULL;
CREATE INDEX ix_comparisons_pair_key ON comparisons (pair_key);
CREATE UNIQUE INDEX ix_comparisons_source_pair_id ON comparisons (source_pair_id) WHERE source_pair_id IS NOT NULL;
CREATE INDEX ix_comparisons_prompt ON comparisons (comparison_id, prompt_id, repeat_of);
CREATE INDEX ix_comparisons_source ON comparisons (source, day, position, comparison_id);
CREATE INDEX ix_comparisons_category ON comparisons (category, day, position, comparison_id);
CREATE INDEX ix_comparisons_gold ON comparisons (day, position, comparison_id) WHERE gold IS NOT NULL;
CREATE INDEX ix_decisions_state ON decisions (state);
CREATE INDEX ix_promotions_model ON promotions (model_name, promotion_id);
CREATE INDEX ix_feedback_session ON feedback (session_id, feedback_id);
CREATE INDEX ix_metric_points_name ON metric_points (name, day);
CREATE UNIQUE INDEX ux_alerts_not_ended ON alerts (rule, subject) WHERE ended_at IS NULL;
CREATE INDEX ix_alert_messages_due ON alert_messages (state, next_attempt_at);
CREATE INDEX ix_alert_messages_alert ON alert_messages (alert_id);
CREATE INDEX ix_predictions_day ON predictions (day);
CREATE INDEX ix_votes_annotator ON votes (annotator_id, seq);
CREATE INDEX ix_votes_displaced_day ON votes (displaced_day, seq) WHERE displaced_day IS NOT NULL;
CREATE INDEX ix_votes_day ON votes (day, seq);
CREATE INDEX ix_drift_events_day ON drift_events (day);
CREATE INDEX ix_drift_events_decision ON drift_events (decision_id);
CREATE INDEX ix_adjudications_comparison ON adjudications (comparison_id, adjudication_id);
CREATE INDEX ix_generation_items_leased ON generation_items (cache_key) WHERE state = 'leased';
CREATE INDEX ix_generation_items_to_do ON generation_items (run_id, provider, model, position) WHERE state = 'open';
CREATE INDEX ix_generation_batches_run ON generation_batches (run_id);
CREATE INDEX ix_generation_spending_day ON generation_spending (day);
CREATE INDEX ix_generation_spending_provider ON generation_spending (provider);
CREATE INDEX ix_offers_to_do ON offers (reserved_for, priority, comparison_id) WHERE n_done < n_wanted;
CREATE UNIQUE INDEX ix_cards_annotator ON cards (annotator_id, n);
CREATE INDEX ix_cards_state ON cards (annotator_id, state, settled_at);
CREATE INDEX ix_cards_leased ON cards (comparison_id, leased_until) WHERE state = 'leased';
CREATE INDEX ix_tokens_user ON tokens (user_id);
CREATE TRIGGER votes_refuse_update BEFORE UPDATE ON votes BEGIN SELECT RAISE(ABORT, 'votes is append-only'); END;
CREATE TRIGGER votes_refuse_delete BEFORE DELETE ON votes BEGIN SELECT RAISE(ABORT, 'votes is append-only'); END;
CREATE TRIGGER predictions_refuse_update BEFORE UPDATE ON predictions BEGIN SELECT RAISE(ABORT, 'predictions is append-only'); END;
CREATE TRIGGER predictions_refuse_delete BEFORE DELETE ON predictions BEGIN SELECT RAISE(ABORT, 'predictions is append-only'); END;
CREATE TRIGGER audit_refuse_update BEFORE UPDATE ON audit BEGIN SELECT RAISE(ABORT, 'audit is append-only'); END;
CREATE TRIGGER audit_refuse_delete BEFORE DELETE ON audit BEGIN SELECT RAISE(ABORT, 'audit is append-only'); END;
CREATE TRIGGER guidelines_refuse_update BEFORE UPDATE ON guidelines BEGIN SELECT RAISE(ABORT, 'guidelines is append-only'); END;
CREATE TRIGGER guidelines_refuse_delete BEFORE DELETE ON guidelines BEGIN SELECT RAISE(ABORT, 'guidelines is append-only'); END;
CREATE TRIGGER annotation_rules_refuse_update BEFORE UPDATE ON annotation_rules BEGIN SELECT RAISE(ABORT, 'annotation_rules is append-only'); END;
CREATE TRIGGER annotation_rules_refuse_delete BEFORE DELETE ON annotation_rules BEGIN SELECT RAISE(ABORT, 'annotation_rules is append-only'); END;
CREATE TRIGGER feedback_refuse_update BEFORE UPDATE ON feedback BEGIN SELECT RAISE(ABORT, 'feedback is append-only'); END;
CREATE TRIGGER feedback_refuse_delete BEFORE DELETE ON feedback BEGIN SELECT RAISE(ABORT, 'feedback is append-only'); END;
COMMIT;
