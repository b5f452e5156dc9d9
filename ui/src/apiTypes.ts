/**
 * Types of API documents under the names that the dashboard uses. The documents themselves are generated from the OpenAPI description
 * (openapi.ts); docs/reference/api.md describes their fields. Hand-written here are only names, and what the description leaves open.
 */
import type * as api from "./openapi";

export interface Tenant {
  org: string;
  project: string;
  env: string;
}

/** A queue's full name. Any part may contain any Unicode, so it is encoded for URLs in one place and shown as text only. */
export interface QueueRef extends Tenant {
  queue: string;
}

// ---- Session -----------------------------------------------------------------------------------------

export type Level = "read" | "operate" | "admin";

/** The key that the viewer is signed in with; the description does not define this document. */
export interface CurrentKey {
  name: string;
  level: Level;
  scope: { org: string | null; project: string | null; env: string | null };
}

// ---- Queues ------------------------------------------------------------------------------------------

export type QueueState = api.LiveQueue;
export type QueueList = api.QueueList;
export type QueueDetail = api.QueueDetail;
export type MissingTask = api.MissingTask;
export type Environment = api.Environment;
export type EnvironmentList = api.EnvironmentList;
export type TopQueues = api.TopQueues;
export type SettingsChange = api.SettingsChange;

/** An update of the live stream: states of queues that changed, and names of queues that were removed. */
export interface QueueUpdate {
  queues: QueueState[];
  gone?: QueueRef[];
  timestamp: string;
}

/** Waiting jobs of one tier. The v2 API calls a queue an action class, and a task an action. */
export type ActionQueue = api.ActionQueue;
export type DetailedQueues = api.DetailedQueues;
export type RunningTasks = api.RunningTasks;

// ---- History -----------------------------------------------------------------------------------------

/** History of a queue or of an environment. */
export type History = Omit<api.QueueHistory, "queue"> | Omit<api.EnvironmentHistory, "environment">;
/** The same with one array per field instead of one object per point. */
export type HistoryColumns = Omit<api.QueueHistoryColumns, "queue"> | Omit<api.EnvironmentHistoryColumns, "environment">;
export type MetricPoint = api.Point;

// ---- Jobs --------------------------------------------------------------------------------------------

export type Job = api.Job;
export type JobState = Job["state"];
export type Payload = api.Payload;
export type DeadJob = api.DeadJob;
export type DeadJobDetail = api.DeadJobDetail;
export type DeadList = api.DeadList;
/** Filter for dead jobs. Absent fields do not filter. */
export type DeadFilter = Omit<api.Redrive, "limit" | "cursor">;
export type Redriven = api.Redriven;

// ---- Pipeline ----------------------------------------------------------------------------------------

export type PipelineHealth = api.Pipeline;
export type PipelineBatch = api.Batch;
export type PipelineGap = api.GapDocument;
export type ServerEvent = api.ServerEventDocument;
export type PipelineProcess = api.PipelineProcess;
export type MetricStream = api.MetricStream;
export type ValkeyServer = api.ValkeyServer;

// ---- Alerts ------------------------------------------------------------------------------------------

export type Incident = api.IncidentDocument;
export type IncidentDetail = api.IncidentDetail;
export type IncidentList = api.IncidentList;
export type Transition = api.TransitionDocument;
export type Delivery = api.DeliveryDocument;
export type Severity = Incident["severity"];

export type Rule = api.RuleDocument;
export type RuleList = api.RuleList;
/** The fields of a rule that users edit. */
export type RuleFields = Omit<Rule, keyof Tenant | "id" | "enabled" | "condition" | "created_at" | "updated_at" | "last_fired_at">;
export type Metric = Rule["metric"];
export type Operator = Rule["operator"];
export type Percentile = Rule["percentile"];
export type Backtest = api.BacktestDocument;

export type Channel = api.ChannelDocument;
export type ChannelList = api.ChannelList;
export type ChannelType = Channel["type"];
export type NewChannel = api.NewChannel;
/** A new channel, with the secret of a webhook if it was generated: this is the only time it is shown. */
export type CreatedChannel = api.MadeChannel;
export type TestResult = api.Tested;

export type Silence = api.SilenceDocument;
export type SilenceList = api.SilenceList;
export type NewSilence = api.NewSilence;

// ---- Streams -----------------------------------------------------------------------------------------

export type WatchedStream = api.WatchedStream;
export type WatchedStreamList = api.WatchedStreamList;
export type StreamConsumer = api.ConsumerDocument;

// ---- Autoscaler --------------------------------------------------------------------------------------

export type WorkerType = api.WorkerTypeDocument;
export type WorkerTypeList = api.WorkerTypeList;
export type Decision = api.DecisionDocument;
export type DecisionList = api.DecisionList;
