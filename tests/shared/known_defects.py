# SPDX-License-Identifier: Apache-2.0
"""What PULP-TrainLib gets wrong (found by reading and running it), and the tests of what is right here.

`docs/primitives.md` prints this table; tests/trainlib/primitives/test_known_defects.py checks that every
test exists.
"""

DEFECTS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "Unrolled matmuls give wrong numbers or write beyond C if the share of a core is not a multiple of "
        "the block; `mm_M_u2` with B transposed does not reset its sum. The README of PULP-TrainLib reports "
        "sporadic errors of `mm_u2`; we found none",
        (
            "trainlib/primitives/test_known_defects::test_every_matmul_is_right_where_its_blocks_do_not_fit",
            "trainlib/kernels/test_kernels::test_on_one_core_every_element_is_written_once_and_operands_stay_inside",
            "trainlib/kernels/test_kernels::test_cores_share_the_result_without_overlap",
        ),
    ),
    (
        "Attention (fp32, 16 bit, MobileBERT) and the RNN do not compile",
        ("trainlib/training/test_cases::test_a_case_runs_with_right_numbers",),
    ),
    (
        "The RNN reads its states from a buffer, has no bias and no gradient of the state",
        (
            "trainlib/primitives/test_recurrent::test_published_rnn_takes_states_from_a_buffer_ours_carries_them",
            "trainlib/primitives/test_recurrent::test_published_rnn_has_no_biases_and_no_state_gradient_ours_has_both",
        ),
    ),
    (
        "Every core computes all channels in WG and IG of the depthwise convolution",
        (
            "trainlib/primitives/test_convolution_loops"
            "::test_direct_loops_share_their_channels_between_the_cores_in_every_step",
        ),
    ),
    (
        "The bias of a linear layer is missing or belongs to another output, and its gradient is added to dW",
        (
            "trainlib/primitives/test_known_defects::test_the_bias_of_a_linear_layer_counts_once_and_stays_out_of_dw",
        ),
    ),
    (
        "The bias of a convolution is added twice, its gradient sums the wrong array or is added to dW",
        (
            "trainlib/primitives/test_convolution::test_known_defect_of_the_library_is_not_ours[fw-bias-added-twice]",
            "trainlib/primitives/test_convolution"
            "::test_known_defect_of_the_library_is_not_ours[wg-bias-gradient-sums-the-wrong-array]",
            "trainlib/primitives/test_convolution"
            "::test_known_defect_of_the_library_is_not_ours[wg-bias-gradient-added-to-the-weights]",
        ),
    ),
    (
        "Flags and kernel numbers are used before they are set (pointwise, IG, broadcast matmul)",
        (
            "trainlib/primitives/test_matmul_embedding"
            "::test_one_fork_per_output_matrix_and_the_kernel_that_was_asked_for",
            "trainlib/training/test_cases::test_a_case_runs_with_right_numbers",
        ),
    ),
    (
        "In a convolution by im2col, WG ignores padding, and IG ignores padding and stride; sizes that the "
        "stride does not divide are refused or counted wrong",
        tuple(
            f"trainlib/primitives/test_convolution::test_known_defect_of_the_library_is_not_ours[{case}]"
            for case in (
                "im2col-wg-ignores-padding",
                "im2col-ig-assumes-stride-1",
                "im2col-ig-assumes-no-padding",
                "im2row-right-and-bottom-border-of-pad-2",
                "im2row-refuses-sizes-the-stride-does-not-divide",
                "output-count-evaluated-left-to-right",
            )
        ),
    ),
    (
        "The weight gradient in HWC exchanges rows and columns; im2row in HWC has no padding",
        tuple(
            f"trainlib/primitives/test_convolution::test_known_defect_of_the_library_is_not_ours[{case}]"
            for case in ("hwc-wg-transposes-with-swapped-sizes", "hwc-im2row-has-no-padding")
        ),
    ),
    (
        "The naive convolution is wrong for IG of a 5x5 kernel, exchanges pads and loses bias gradients",
        tuple(
            f"trainlib/primitives/test_convolution::test_known_defect_of_the_library_is_not_ours[{case}]"
            for case in (
                "naive-ig-of-a-5x5-kernel",
                "naive-ig-swaps-left-and-upper-padding",
                "naive-bias-gradient-skips-padded-positions",
            )
        ),
    ),
    (
        "The input gradient of a pointwise convolution is wrong unless Ci = Co",
        tuple(
            f"trainlib/primitives/test_convolution::test_known_defect_of_the_library_is_not_ours[{case}]"
            for case in (
                "pointwise-ig-wrong-unless-ci-is-co",
                "pointwise-ig-hwc-wrong-unless-ci-is-co",
                "pointwise-has-no-bias",
            )
        ),
    ),
    (
        "Without padding, the depthwise convolution ignores its stride; its gradients ignore stride and "
        "padding. It does not support HWC",
        tuple(
            f"trainlib/primitives/test_convolution::test_known_defect_of_the_library_is_not_ours[{case}]"
            for case in (
                "depthwise-fw-ignores-stride-without-padding",
                "depthwise-backward-ignores-padding",
                "depthwise-backward-ignores-stride",
                "depthwise-has-no-hwc",
            )
        ),
    ),
    (
        "The transposed convolution orders its weights differently per step, adds to its output and accesses "
        "memory outside its arrays",
        tuple(
            f"trainlib/primitives/test_convolution::test_known_defect_of_the_library_is_not_ours[{case}]"
            for case in (
                "transposed-order-of-weights-differs-between-steps",
                "transposed-fw-and-ig-add-to-what-is-there",
                "transposed-taps-outside-touch-memory",
            )
        ),
    ),
    (
        "Max-pooling uses the vertical stride also horizontally",
        ("trainlib/primitives/test_pooling::test_defect_the_width_of_a_max_pooling_follows_its_own_stride",),
    ),
    (
        "LayerNorm writes one row too many if the number of cores does not divide that of the rows; norms "
        "need zeroed buffers, and their variance is wrong for a large mean; InstanceNorm never detects an "
        "overflow",
        (
            "trainlib/primitives/test_norms::test_defect_layer_norm_of_rows_that_the_cores_do_not_divide_stays_inside",
            "trainlib/primitives/test_norms::test_defect_parameter_gradients_of_a_batch_add_up_and_need_no_zeroed_buffer",
            "trainlib/primitives/test_norms::test_defect_the_variance_does_not_cancel_for_a_large_mean",
            "trainlib/primitives/test_norms::test_a_constant_channel_gives_the_bias_and_no_infinity",
        ),
    ),
    (
        "reduce_mean sums a long axis once per core, and adds the result to the old content of its output",
        (
            "trainlib/primitives/test_resampling::test_a_long_reduced_axis_is_summed_once_and_not_once_per_core",
            "trainlib/primitives/test_resampling::test_the_mean_does_not_depend_on_what_was_in_the_output_before",
        ),
    ),
    (
        "pad does not clear a border wider than one; every core pads everything",
        (
            "trainlib/primitives/test_moving_data"
            "::test_a_rim_wider_than_one_at_the_left_and_top_is_zero_where_the_library_leaves_data",
            "trainlib/primitives/test_moving_data::test_padding_is_shared_among_the_cores",
        ),
    ),
    (
        "The gradient of an interpolation is an interpolation, not the adjoint",
        ("trainlib/primitives/test_resampling::test_the_gradient_is_the_adjoint_and_not_an_interpolation",),
    ),
    (
        "Neighbouring elements of a dropout mask come from related seeds",
        ("trainlib/primitives/test_resampling::test_a_mask_drops_its_share_and_neighbours_are_independent",),
    ),
    (
        "The input gradient of attention is added to the old content of its buffer; softmax is always "
        "approximate",
        (
            "trainlib/primitives/test_attention::test_published_input_gradient_adds_to_what_was_there_ours_writes",
            "trainlib/primitives/test_attention"
            "::test_rows_of_the_probabilities_sum_to_one_where_the_published_exponential_is_three_percent_off",
        ),
    ),
    (
        "Cross-entropy overflows for large logits, weight decay changes the gradient, GELU has no gradient",
        (
            "trainlib/primitives/test_losses::test_defect_cross_entropy_of_large_logits_does_not_overflow",
            "trainlib/primitives/test_optimizers::test_defect_weight_decay_leaves_the_gradient_as_it_is",
            "trainlib/primitives/test_activations::test_gelu_has_a_gradient_in_every_form_though_the_library_has_fw_only",
        ),
    ),
    (
        "Training gives wrong numbers with a frozen layer, and does not converge with a frozen last layer",
        (
            "trainlib/ir/test_graph::test_frozen_layers_are_not_trained_and_stop_the_backward_pass",
            "trainlib/training/test_training_forms::test_a_partly_frozen_network_agrees_with_torch",
        ),
    ),
    (
        "The AutoTuner fails if one tiling is requested, and computes tiles without padding and stride; "
        "bytes of biases, frozen and depthwise weights are counted wrong, and overflows of memory only "
        "printed",
        (
            "scheduler/tuner/test_tuner::test_pruned_finds_what_exhaustive_finds_on_every_op_of_a_model",
            "scheduler/memory/test_memory_plan::test_every_tensor_has_a_level_an_address_and_its_whole_life",
            "trainlib/primitives/test_known_defects::test_frozen_weights_biases_and_depthwise_weights_have_their_bytes",
            "trainlib/primitives/test_known_defects::test_what_does_not_fit_is_refused",
        ),
    ),
    (
        "The backward pass of the ResNet calls a layer twice",
        ("trainlib/primitives/test_known_defects::test_every_layer_of_the_resnet_goes_backward_once",),
    ),
)
"""Defect, tests (file::function[case])."""
