module @jit_train_step attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["fsdp"=4]> {stablehlo.mesh = {axes = [{name = "fsdp", size = 4 : i64}]}}
  func.func public @main(%arg0: tensor<1024x4096xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}, {}]>}, %arg1: tensor<4096x1024xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}, {}]>}, %arg2: tensor<1024x4096xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}, {}]>}, %arg3: tensor<4096x1024xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}, {}]>}, %arg4: tensor<512x1024xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}, {}]>}) -> (tensor<1024x4096xbf16> {jax.result_info = "result[0][0][0]", sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}, {}]>}, tensor<4096x1024xbf16> {jax.result_info = "result[0][0][1]", sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}, {}]>}, tensor<1024x4096xbf16> {jax.result_info = "result[0][1][0]", sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}, {}]>}, tensor<4096x1024xbf16> {jax.result_info = "result[0][1][1]", sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}, {}]>}, tensor<f32> {jax.result_info = "result[1]"}) {
    %0 = stablehlo.dot_general %arg4, %arg0, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<512x1024xbf16>, tensor<1024x4096xbf16>) -> tensor<512x4096xbf16>
    %1 = stablehlo.tanh %0 : tensor<512x4096xbf16>
    %cst = stablehlo.constant dense<1.000000e+00> : tensor<bf16>
    %2 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<bf16>) -> tensor<512x4096xbf16>
    %3 = stablehlo.add %2, %1 : tensor<512x4096xbf16>
    %cst_0 = stablehlo.constant dense<1.000000e+00> : tensor<bf16>
    %4 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<bf16>) -> tensor<512x4096xbf16>
    %5 = stablehlo.subtract %4, %1 : tensor<512x4096xbf16>
    %6 = stablehlo.multiply %3, %5 : tensor<512x4096xbf16>
    %7 = stablehlo.dot_general %1, %arg1, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<512x4096xbf16>, tensor<4096x1024xbf16>) -> tensor<512x1024xbf16>
    %8 = stablehlo.add %arg4, %7 : tensor<512x1024xbf16>
    %9 = stablehlo.dot_general %8, %arg2, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<512x1024xbf16>, tensor<1024x4096xbf16>) -> tensor<512x4096xbf16>
    %10 = stablehlo.tanh %9 : tensor<512x4096xbf16>
    %cst_1 = stablehlo.constant dense<1.000000e+00> : tensor<bf16>
    %11 = stablehlo.broadcast_in_dim %cst_1, dims = [] : (tensor<bf16>) -> tensor<512x4096xbf16>
    %12 = stablehlo.add %11, %10 : tensor<512x4096xbf16>
    %cst_2 = stablehlo.constant dense<1.000000e+00> : tensor<bf16>
    %13 = stablehlo.broadcast_in_dim %cst_2, dims = [] : (tensor<bf16>) -> tensor<512x4096xbf16>
    %14 = stablehlo.subtract %13, %10 : tensor<512x4096xbf16>
    %15 = stablehlo.multiply %12, %14 : tensor<512x4096xbf16>
    %16 = stablehlo.dot_general %10, %arg3, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<512x4096xbf16>, tensor<4096x1024xbf16>) -> tensor<512x1024xbf16>
    %17 = stablehlo.add %8, %16 : tensor<512x1024xbf16>
    %18 = stablehlo.convert %17 : (tensor<512x1024xbf16>) -> tensor<512x1024xf32>
    %19 = chlo.square %18 : tensor<512x1024xf32> -> tensor<512x1024xf32>
    %cst_3 = stablehlo.constant dense<2.000000e+00> : tensor<f32>
    %20 = stablehlo.broadcast_in_dim %cst_3, dims = [] : (tensor<f32>) -> tensor<512x1024xf32>
    %21 = stablehlo.multiply %20, %18 : tensor<512x1024xf32>
    %cst_4 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %22 = stablehlo.reduce(%19 init: %cst_4) applies stablehlo.add across dimensions = [0, 1] : (tensor<512x1024xf32>, tensor<f32>) -> tensor<f32>
    %cst_5 = stablehlo.constant dense<5.242880e+05> : tensor<f32>
    %23 = stablehlo.divide %22, %cst_5 : tensor<f32>
    %cst_6 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %cst_7 = stablehlo.constant dense<5.242880e+05> : tensor<f32>
    %24 = stablehlo.divide %cst_6, %cst_7 : tensor<f32>
    %25 = stablehlo.broadcast_in_dim %24, dims = [] : (tensor<f32>) -> tensor<512x1024xf32>
    %26 = stablehlo.multiply %25, %21 : tensor<512x1024xf32>
    %27 = stablehlo.convert %26 : (tensor<512x1024xf32>) -> tensor<512x1024xbf16>
    %28 = stablehlo.dot_general %27, %10, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<512x1024xbf16>, tensor<512x4096xbf16>) -> tensor<1024x4096xbf16>
    %29 = stablehlo.transpose %28, dims = [1, 0] : (tensor<1024x4096xbf16>) -> tensor<4096x1024xbf16>
    %30 = stablehlo.dot_general %27, %arg3, contracting_dims = [1] x [1], precision = [DEFAULT, DEFAULT] : (tensor<512x1024xbf16>, tensor<4096x1024xbf16>) -> tensor<512x4096xbf16>
    %31 = stablehlo.multiply %30, %15 : tensor<512x4096xbf16>
    %32 = stablehlo.dot_general %31, %8, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<512x4096xbf16>, tensor<512x1024xbf16>) -> tensor<4096x1024xbf16>
    %33 = stablehlo.transpose %32, dims = [1, 0] : (tensor<4096x1024xbf16>) -> tensor<1024x4096xbf16>
    %34 = stablehlo.dot_general %31, %arg2, contracting_dims = [1] x [1], precision = [DEFAULT, DEFAULT] : (tensor<512x4096xbf16>, tensor<1024x4096xbf16>) -> tensor<512x1024xbf16>
    %35 = stablehlo.add %27, %34 : tensor<512x1024xbf16>
    %36 = stablehlo.dot_general %35, %1, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<512x1024xbf16>, tensor<512x4096xbf16>) -> tensor<1024x4096xbf16>
    %37 = stablehlo.transpose %36, dims = [1, 0] : (tensor<1024x4096xbf16>) -> tensor<4096x1024xbf16>
    %38 = stablehlo.dot_general %35, %arg1, contracting_dims = [1] x [1], precision = [DEFAULT, DEFAULT] : (tensor<512x1024xbf16>, tensor<4096x1024xbf16>) -> tensor<512x4096xbf16>
    %39 = stablehlo.multiply %38, %6 : tensor<512x4096xbf16>
    %40 = stablehlo.dot_general %39, %arg4, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<512x4096xbf16>, tensor<512x1024xbf16>) -> tensor<4096x1024xbf16>
    %41 = stablehlo.transpose %40, dims = [1, 0] : (tensor<4096x1024xbf16>) -> tensor<1024x4096xbf16>
    %cst_8 = stablehlo.constant dense<1.000980e-02> : tensor<bf16>
    %42 = stablehlo.broadcast_in_dim %cst_8, dims = [] : (tensor<bf16>) -> tensor<1024x4096xbf16>
    %43 = stablehlo.multiply %42, %41 : tensor<1024x4096xbf16>
    %44 = stablehlo.subtract %arg0, %43 : tensor<1024x4096xbf16>
    %cst_9 = stablehlo.constant dense<1.000980e-02> : tensor<bf16>
    %45 = stablehlo.broadcast_in_dim %cst_9, dims = [] : (tensor<bf16>) -> tensor<4096x1024xbf16>
    %46 = stablehlo.multiply %45, %37 : tensor<4096x1024xbf16>
    %47 = stablehlo.subtract %arg1, %46 : tensor<4096x1024xbf16>
    %cst_10 = stablehlo.constant dense<1.000980e-02> : tensor<bf16>
    %48 = stablehlo.broadcast_in_dim %cst_10, dims = [] : (tensor<bf16>) -> tensor<1024x4096xbf16>
    %49 = stablehlo.multiply %48, %33 : tensor<1024x4096xbf16>
    %50 = stablehlo.subtract %arg2, %49 : tensor<1024x4096xbf16>
    %cst_11 = stablehlo.constant dense<1.000980e-02> : tensor<bf16>
    %51 = stablehlo.broadcast_in_dim %cst_11, dims = [] : (tensor<bf16>) -> tensor<4096x1024xbf16>
    %52 = stablehlo.multiply %51, %29 : tensor<4096x1024xbf16>
    %53 = stablehlo.subtract %arg3, %52 : tensor<4096x1024xbf16>
    return %44, %47, %50, %53, %23 : tensor<1024x4096xbf16>, tensor<4096x1024xbf16>, tensor<1024x4096xbf16>, tensor<4096x1024xbf16>, tensor<f32>
  }
}
